import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { constants, setPriority } from "node:os";

import type { Page } from "@playwright/test";
import type { Folder } from "../lib/folder";
import { python } from "../lib/paths";
import { expect, test } from "../lib/test";
import type { Workbench } from "../lib/workbench";

/** What a recorded run is given. */
const RUN = ["--input", "random", "--symbol", "N=4", "--symbol", "K=5", "--workspace", "runs.db"];

function record(folder: Folder, ...more: string[]): void {
  execFileSync(python(), ["-m", "opstep", "run", "entropy.opg", ...RUN, ...more], {
    cwd: folder.path,
    stdio: "ignore",
  });
}

/** A run that does not end by itself, and gets what time the workbench leaves. */
function goingOn(folder: Folder): ChildProcess {
  const args = ["-m", "opstep", "run", "entropy.opg", ...RUN, "--steps", "10000000"];
  const run = spawn(python(), args, { cwd: folder.path, stdio: "ignore" });
  if (run.pid !== undefined) setPriority(run.pid, constants.priority.PRIORITY_LOW);
  return run;
}

async function end(run: ChildProcess): Promise<void> {
  const ended = once(run, "exit");
  run.kill("SIGINT");
  await ended;
}

function rows(page: Page) {
  return page.locator(".tree-explorer-viewlet-tree-view .monaco-list-row");
}

async function opened(workbench: Workbench): Promise<void> {
  await workbench.openFile("entropy.opg");
  await showRuns(workbench.page);
}

/** Shows the view of runs, whichever view a debug session has left in the sidebar. */
async function showRuns(page: Page): Promise<void> {
  const title = page.locator(".part.sidebar .title-label", { hasText: /opstep/i });
  await expect(async () => {
    // A click on the icon of a view that is shown hides it.
    if (!(await title.isVisible()))
      await page.getByRole("tab", { name: "opstep", exact: true }).click();
    await expect(title).toBeVisible({ timeout: 5_000 });
  }).toPass();
}

test("rows are sorted and paged, a line is gone to, a mistake is marked", async ({ workbench }) => {
  const { folder, page } = workbench;
  record(folder, "--steps", "100");
  await opened(workbench);
  await expect(rows(page).filter({ hasText: "runs.db" })).toBeVisible();
  await workbench.command("opstep: Open Workspace Query");
  const query = await workbench.ask(
    "select s.step, o.file, o.line, o.name from stats as s join ops as o using (run, op) where s.op >= 0",
  );
  await expect(query.locator(".status")).toContainText("rows in");
  const count = Number(
    (await query.locator(".status").textContent())?.match(/^([\d,]+) rows/)?.[1]?.replace(",", ""),
  );
  expect(count).toBeGreaterThan(400);
  const first = query.locator(".grid-row").first().locator(".cell");
  await expect(first).toHaveText(["0", "entropy.opg", /\d+/, /\w+/]);

  // The end of the answer, which was not sent with its beginning.
  await query.locator(".grid").focus();
  await workbench.press("Control+End");
  const last = query.locator(`.grid-row[aria-rowindex="${count + 1}"] .cell`);
  await expect(last.first()).toHaveText("99");
  expect(await query.locator(".grid-row").count()).toBeLessThan(100);

  // Downwards by step, from the keyboard's column.
  await workbench.press("Control+Home", "s", "s");
  await expect(first.first()).toHaveText("99");
  await expect(query.locator('[role="columnheader"][aria-sort="descending"]')).toContainText(
    "step",
  );

  const selection = page.locator('.statusbar-item[id="status.editor.selection"]');
  await expect(async () => {
    const line = await first.nth(2).textContent(); // the table may still be drawn anew
    await first.nth(2).click();
    await expect(selection).toContainText(`Ln ${line}`, { timeout: 10_000 });
  }).toPass();

  await workbench.command("opstep: Open Workspace Query");
  await workbench.ask("select name, op, line, mean_ns from slowest_ops order by line");
  await expect(query.locator(".grid-row").first()).toContainText("mul");
  await expect(query.getByRole("columnheader").last()).toHaveText("mean_ns (ms)");
  await expect(query.locator(".grid-row")).toHaveCount(7);
  await workbench.ask("select absmx from stats");
  await expect(query.locator(".problem")).toContainText("no such column: absmx");
  await expect(query.locator(".problem")).toContainText("did you mean absmax?");
  await expect(query.locator(".cm-lintRange-error")).toHaveText("absmx");

  await workbench.ask("delete from runs");
  await expect(query.locator(".problem")).toContainText("not allowed: it would write");
  await expect(query.locator(".cm-tooltip-autocomplete")).toHaveCount(0);

  await query.locator(".cm-content").click();
  await workbench.press("Control+a");
  await page.keyboard.insertText("select 40 + 2");
  await workbench.press("Control+Enter");
  await expect(query.locator(".grid-row .cell")).toHaveText("42");
});

test("a run that is under way grows in the tree and in its plot", async ({ workbench }) => {
  const { folder, page } = workbench;
  await opened(workbench);
  await expect(page.getByText("No workspace found in this folder.")).toBeVisible();
  const run = goingOn(folder);
  try {
    const row = rows(page).filter({ hasText: "entropy.opg" });
    await expect(row).toHaveAttribute("aria-label", /running/);
    // It is open, and shows its curves.
    await expect(rows(page).filter({ hasText: /^seconds/ })).toContainText(/[▁▂▃▄▅▆▇█]{3}/);
    await expect(async () => {
      // A live row is drawn anew with each step that is told, and its buttons with it.
      await row.hover({ timeout: 5_000 });
      await row.getByRole("button", { name: "Plot" }).click({ timeout: 5_000 });
      await expect(workbench.tab("runs.db: mean")).toBeVisible({ timeout: 10_000 });
    }).toPass();
    const query = await workbench.webview(".cm-content");
    await expect(query.locator(".cm-content")).toHaveText(/^metrics\.mean where run=\w+$/);
    // What is picked is written, and what is written is picked.
    const picked = (name: string) => query.getByRole("combobox", { name, exact: true });
    await expect(picked("Statistic")).toHaveValue("metrics.mean");
    await picked("Statistic").selectOption("stats.absmax");
    await picked("Op").selectOption("log");
    await picked("Run").selectOption("*");
    await expect(query.locator(".cm-content")).toHaveText("stats.absmax where run=*, op=log");
    await expect(query.locator(".legend-name")).toHaveText(["lg"]);
    await workbench.ask("metrics.seconds");
    await expect(picked("Statistic")).toHaveValue("metrics.seconds");
    await expect(workbench.tab("runs.db: seconds")).toBeVisible();
    await expect(picked("Op")).toBeHidden();
    const points = async () =>
      Number(
        (await query.locator(".chart-note").textContent())
          ?.match(/([\d,]+) points/)?.[1]
          ?.replaceAll(",", ""),
      );
    await expect(query.locator(".chart-area canvas")).toBeVisible();
    const before = await points();
    await expect.poll(points).toBeGreaterThan(before);
  } finally {
    await end(run);
  }
  await expect(rows(page).filter({ hasText: "entropy.opg" })).toHaveAttribute(
    "aria-label",
    /interrupted/,
  );
});

test("beside a run that is under way, others are not drawn anew", async ({ workbench }) => {
  const { folder, page } = workbench;
  record(folder);
  await opened(workbench);
  const run = goingOn(folder);
  try {
    const live = rows(page).filter({ hasText: /running.*entropy/ });
    await expect(rows(page).filter({ hasText: /^seconds/ })).toBeVisible();
    const other = rows(page).filter({ hasText: "entropy.opg", hasNotText: "running" });
    const button = other.locator('.action-label[aria-label="Plot"]');
    await expect(async () => {
      // What is still told of the run that has ended draws it anew once.
      await button.evaluate((element) => element.classList.add("as-before"));
      for (let told = 0; told < 2; told++) {
        const before = (await live.textContent()) ?? "";
        await expect(live).not.toHaveText(before);
      }
      await expect(button).toHaveClass(/as-before/, { timeout: 1_000 });
    }).toPass();
  } finally {
    await end(run);
  }
});

test("a finding opens its report, a kept tensor is a picture, a run is removed after a question", async ({
  workbench,
}) => {
  const { folder, page } = workbench;
  record(folder, "--seed", "1");
  record(folder, "--seed", "2");
  await opened(workbench);
  const runs = rows(page).filter({ hasText: "entropy.opg" });
  await expect(runs).toHaveCount(2);
  // A run that was seen while it was under way is open already, until the news of its end.
  const findings = rows(page).filter({ hasText: /^Findings/ });
  // A row that is drawn anew at the moment it is clicked, as that news has it, does nothing.
  const report = await workbench.webview(".places", async () => {
    await workbench.debug.expand(runs.first());
    await findings.click({ timeout: 3_000 }); // the only one need not be looked for below
  });
  await expect(report.locator(".why")).toContainText(
    "elements are infinite; its operands were finite",
  );
  await expect(report.locator(".link.origin .head")).toContainText(
    /lg\s*f32\[4, 5\]\s*result of log\s*\d+ infinities/,
  );
  await expect(report.locator(".details")).toContainText("what went in");
  await report.getByRole("button", { name: "Debug there" }).click();
  await workbench.debug.expectStoppedAt(11);
  await workbench.debug.stop();
  await showRuns(page);
  const tensors = rows(page).filter({ hasText: /^Tensors/ });
  await expect(() => workbench.debug.expand(tensors)).toPass();
  const kept = rows(page).filter({ hasText: "f32[4, 5]" }).first();
  const tensor = await workbench.webview("canvas", () => kept.click({ timeout: 3_000 }));
  await expect(tensor.locator("body")).toContainText("f32[4, 5]");

  const remove = page.getByRole("button", { name: "Remove", exact: true });
  await workbench.choose(runs.first(), "Remove Run…", remove);
  await remove.click();
  await expect(runs).toHaveCount(1);
});

/** Holds a workspace as a process does that writes to it and does not end. */
const HOLD = `
import sqlite3, sys
held = sqlite3.connect("runs.db", isolation_level=None)
held.execute("pragma locking_mode = exclusive")
held.execute("begin exclusive")
held.execute("update runs set id = id")
print("held", flush=True)
sys.stdin.read()
`;

test("a workspace that another process holds, and files that are none, are told apart", async ({
  workbench,
}) => {
  const { folder, page } = workbench;
  record(folder);
  await folder.write("notes.db", "not SQLite at all");
  const holder = spawn(python(), ["-c", HOLD], { cwd: folder.path });
  try {
    await once(holder.stdout, "data");
    await opened(workbench);
    const row = rows(page).filter({ hasText: "runs.db" });
    await expect(row).toContainText("locked");
    await workbench.debug.expand(row);
    await expect(rows(page).nth(1)).toContainText("another process is writing to it");
    await expect(rows(page).filter({ hasText: "notes.db" })).toHaveCount(0);
    await workbench.command("opstep: Open a Workspace…");
    await workbench.chooseFile(/\/$/, folder.at("notes.db"));
    await expect(workbench.notification("it is not an SQLite file")).toHaveCount(1);
  } finally {
    holder.stdin.end();
    await once(holder, "exit");
  }
  // Let go, it is read without a word.
  await expect(rows(page).filter({ hasText: "runs.db" })).toContainText("1 run");
  expect(await folder.read("notes.db")).toBe("not SQLite at all");
});
