/** Views of tensors and of NaN reports in sessions on Python. */

import { execFileSync } from "node:child_process";
import { CACHE } from "../lib/opstep";
import { python } from "../lib/paths";
import { expect, test } from "../lib/test";
import type { Workbench } from "../lib/workbench";

/** Lines of net.py. */
const MEAN = 10;
const STATES = 23;
const RESULT = 24;

test.slow(); // PyTorch is imported

/** What records the past is compiled in the background of a first session: later ones have it. */
test.beforeAll(() => {
  const build =
    "from opstep.debuggee.past import recorder as r; r.core().build(); r.tensors().build()";
  execFileSync(python(), ["-c", build], { env: { ...process.env, OPSTEP_CACHE: CACHE } });
});

async function stopAt(workbench: Workbench, line: number): Promise<void> {
  const { debug } = workbench;
  await workbench.openFile("net.py");
  await debug.setBreakpoint(line);
  await workbench.openFile("train.py");
  await debug.pressF5();
  await expect(workbench.tab("net.py")).toHaveClass(/active/, { timeout: 120_000 });
  await debug.expectStoppedAt(line);
  await debug.view();
}

test("a tensor of a script is a picture, a table, and figures; so is one of the past", async ({
  workbench,
}) => {
  const { debug, page } = workbench;
  await stopAt(workbench, RESULT);
  const opened = page.locator("iframe.webview").first();
  await workbench.choose(await debug.variable("mask", "Locals"), "Open in Tensor View", opened);
  const view = await workbench.webview("canvas");
  await expect(view.locator('[aria-label="Type"]')).toHaveText("f32[8, 12]");
  await expect(view.locator(".figures")).toContainText("elements 96");
  await expect(view.locator(".bar.tools")).not.toContainText("steps ago");
  await view.locator('[role="tab"][aria-label="Histogram"]').click();
  await expect(view.locator(".figures")).toContainText("all finite");

  // An expression, of the chosen frame; and another one, which is no tensor.
  const box = view.getByLabel("Expression", { exact: true });
  await box.fill("states[:, 0] * 2");
  await box.press("Enter");
  await expect(view.locator('[aria-label="Type"]')).toHaveText("f32[8, 16]");
  await box.fill("self");
  await box.press("Enter");
  await expect(view.getByRole("status").first()).toContainText("no tensor and no array");

  // Where it stands the mask is finite; a step back `states` has no value yet.
  await box.fill("words");
  await box.press("Enter");
  await expect(view.locator('[aria-label="Type"]')).toHaveText("i64[8, 12]");
  await debug.button("Step Back");
  await debug.expectStoppedAt(STATES);
  await expect(view.locator(".link", { hasText: /^forward:/ })).toHaveText(`forward:${STATES}`);
  await expect(view.locator('[aria-label="Type"]')).toHaveText("i64[8, 12]");
  await box.fill("states");
  await box.press("Enter");
  await expect(view.getByRole("status").first()).toContainText("not defined");
  await debug.stop();
});

test("the table of values has the tensors of a frame and of its modules", async ({ workbench }) => {
  const { debug } = workbench;
  await stopAt(workbench, RESULT);
  await workbench.command("opstep: Show Table of Values");
  const table = await workbench.webview('[role="grid"], table, .row');
  for (const name of ["words", "mask", "states", "self.out.weight"]) {
    await expect(table.getByText(name, { exact: true }).first()).toBeVisible();
  }
  await debug.stop();
});

test("Hunt NaN of a script ends in its report, and from there in the debugger", async ({
  workbench,
}) => {
  const { debug } = workbench;
  await workbench.openFile("train.py");
  await workbench.command("opstep: Hunt NaN");
  const report = await workbench.webview(".places");
  const link = report.locator(".link.origin").first();
  await expect(link).toContainText(`net.py:${MEAN}`);
  await expect(report.locator(".why")).toContainText("0 / 0");
  await link.getByText("Debug there").click();
  await debug.expectStoppedAt(MEAN);
  await debug.stop();
});

const INFINITY = `import torch


def scores(x):
    big = torch.exp(x)
    return big - big


print(scores(torch.tensor([1.0, 1000.0])))
`;

test("from the report of a NaN one goes back to the op that made its infinities", async ({
  workbench,
}) => {
  const { debug, folder } = workbench;
  await folder.write("scores.py", INFINITY);
  await workbench.openFile("scores.py");
  await debug.pressF5();
  await debug.expectStoppedAt(6);
  const report = await workbench.webview(".chain");
  const cause = report.locator(".link.origin").nth(1);
  await expect(cause).toContainText("overflow of f32");
  await cause.getByText("Debug there").click();
  await debug.expectStoppedAt(5);
  await debug.stop();
});

test("the report of a NaN opens where it is born, and leads to what it was made of", async ({
  workbench,
}) => {
  const { debug } = workbench;
  await workbench.openFile("train.py");
  await debug.pressF5();
  await expect(workbench.tab("net.py")).toHaveClass(/active/, { timeout: 120_000 });
  await debug.expectStoppedAt(MEAN);
  const report = await workbench.webview(".chain");
  const link = report.locator(".link.origin").first();
  await expect(link).toContainText("result of div");
  await expect(link).toContainText("the run stands here");
  await expect(report.locator(".why")).toContainText("0 / 0");
  await link.locator("td .link").first().click();
  const view = await workbench.webview("canvas");
  await expect(view.locator('[aria-label="Type"]')).toContainText("f32[8, ");

  // The graph is what has run; nobody has recorded it.
  await workbench.command("opstep: Open Graph View");
  const graph = await workbench.webview("svg .nodes");
  const now = graph.locator(".node.is-now");
  await expect(now).toContainText("pooling");
  await expect(graph.locator(".node", { hasText: "layers" })).toBeVisible();
  await now.locator(".body").dblclick();
  await expect(graph.locator(".node.is-now", { hasText: "div" })).toBeVisible();
  await debug.stop();
});
