import { chmod } from "node:fs/promises";

import { ENTROPY, SMALL } from "../lib/configurations";
import { python } from "../lib/paths";
import { expect, test } from "../lib/test";

test("F5 without a launch.json asks for open sizes once, and stops at the entry", async ({
  workbench,
}) => {
  const { debug, folder, page } = workbench;
  const name = folder.unused("entropy.opg");
  await folder.write(name, await folder.read("entropy.opg"));
  await workbench.openFile(name);
  await debug.pressF5();
  await workbench.answer("N=4, K=5");
  await debug.expectStoppedAt(3);
  await debug.view();
  await expect(await debug.variable("scores", "Inputs")).toContainText("f32[4, 5]");
  await debug.stop();

  await workbench.focusEditor();
  await debug.pressF5();
  await debug.expectStoppedAt(3);
  await expect(page.locator(".quick-input-widget")).toBeHidden();
  await debug.stop();
});

test("a debugger waits for F5, one at a time, and goes with the last graph", async ({
  closed: workbench,
  server,
}) => {
  const { debug, folder } = workbench;
  const started = server.watch();
  const waiting = () => started().filter((p) => p.command.includes("dap --ahead"));
  /** Waits for the only one to be another, and gives its number. */
  const another = async (...before: number[]): Promise<number> => {
    await expect
      .poll(() => waiting().map(({ pid }) => before.includes(pid)), { message: "one, a new one" })
      .toEqual([false]);
    return waiting()[0].pid;
  };
  await folder.launch({ ...SMALL, stopOnEntry: true });
  await workbench.open();
  await workbench.openFile("small.opg");
  const first = await another();
  await debug.pressF5();
  await debug.expectStoppedAt(4);
  // One that is killed ends its session, and the next is there.
  process.kill(first, "SIGKILL");
  await debug.expectEnded();
  const second = await another(first);
  // Another Python starts another.
  await folder.write("python", `#!/bin/sh\nexec ${python()} "$@"\n`);
  await chmod(folder.at("python"), 0o755);
  await folder.settings({ "opstep.python": folder.at("python") });
  const third = await another(first, second);
  await workbench.focusEditor();
  await debug.pressF5();
  await debug.expectStoppedAt(4);
  await debug.stop();
  await another(first, second, third);
  await workbench.command("View: Close Editor");
  await expect.poll(waiting).toEqual([]);
});

test("a file in a window without a folder is debugged all the same", async ({ closed }) => {
  const { folder } = closed;
  await closed.openAlone(folder.at("small.opg"));
  await closed.expectReady();
  await closed.focusEditor();
  await closed.debug.pressF5();
  await closed.debug.expectStoppedAt(4);
  await closed.debug.stop();
});

test("an edit while it stands is gone on with: what does not depend on it is kept", async ({
  workbench,
}) => {
  const { debug } = workbench;
  await debug.configure({ ...ENTROPY, stopOnEntry: true });
  await workbench.openFile("entropy.opg");
  await debug.setBreakpoint(6);
  await debug.pressF5();
  await debug.expectStoppedAt(3);
  await debug.ignoreTrouble();
  await debug.pressF5();
  await debug.expectStoppedAt(6);
  await debug.view();
  await expect(await debug.variable("each")).toContainText("nan");
  await workbench.focusEditor();
  await workbench.goTo(3, "  sharp = mul(scores, 60.0".length + 1);
  await workbench.press("Backspace", "Backspace", "Backspace", "Backspace");
  await workbench.type("0.5");
  await workbench.save();
  await workbench.command("opstep: Reload File in Debugger");
  await debug.expectConsole(/kept|computed again/);
  await debug.expectStoppedAt(3); // from there on: while that is under way, F5 does nothing
  await debug.pressF5();
  await debug.expectStoppedAt(6);
  await expect(await debug.variable("each")).not.toContainText("nan");
  await debug.stop();
});

const SIZED = `graph main(x: f32[N]) -> f32[] {
  y = reshape(x, shape=[-1, 3])
  z = sum(y)
  return z
}
`;

test("sizes that a program does not take are told with their line, and asked for again", async ({
  workbench,
}) => {
  const { debug, folder } = workbench;
  const name = folder.unused("sized.opg");
  await folder.write(name, SIZED);
  await workbench.openFile(name);
  await debug.pressF5();
  await workbench.answer("N=4");
  const said = workbench.notification(`${name}:2: `);
  await expect(said).toBeVisible();
  await said.getByRole("button", { name: "Change Sizes…" }).click();
  await workbench.answer("N=6");
  await debug.expectStoppedAt(2);
  await debug.stop();
});

test("sizes that no memory holds are told with their input, not kept, and asked for again", async ({
  workbench,
}) => {
  const { debug, folder } = workbench;
  const name = folder.unused("large.opg");
  await folder.write(name, SIZED.replace("f32[N]", "f32[N, N]"));
  await workbench.openFile(name);
  const said = workbench.notification(/TiB are wanted for input x, f32\[1000002, 1000002\]/);
  await debug.pressF5();
  await workbench.answer("N=1000002");
  await said.getByRole("button", { name: "Change Sizes…" }).click();
  await workbench.answer("N=6");
  await debug.expectStoppedAt(2);
  await debug.stop();

  await workbench.command("opstep: Change Sizes…");
  await workbench.answer("N=1000002");
  await workbench.command("opstep: Hunt NaN");
  await said.getByRole("button", { name: "Change Sizes…" }).click();
  await workbench.answer("N=6");
  await expect(workbench.notification(/no NaN and no infinity/)).toBeVisible();
});

test("a run that fails shows why, though the panel was closed", async ({ workbench }) => {
  const { debug, folder, page } = workbench;
  const text = `graph main(x: f32[]) -> f32[] {
  fine = greater(x, 1.0)
  assert fine, "x is too small"
  return x
}
`;
  await folder.write("fails.opg", text);
  const program = "${workspaceFolder}/fails.opg";
  await debug.configure({ program, inputs: { x: 0 }, noDebug: true });
  await workbench.openFile("fails.opg");
  for (const _ of ["the first session opens it by itself", "the second does not"]) {
    await debug.pressF5();
    await expect(page.locator(".repl")).toBeVisible();
    await expect(page.locator(".repl")).toContainText("x is too small");
    await debug.expectEnded();
    await workbench.command("View: Hide Panel");
    await expect(page.locator(".part.panel")).toBeHidden();
    await workbench.focusEditor();
  }
});

test("code and views keep their sides when either is closed", async ({ workbench }) => {
  const { debug, page } = workbench;
  const name = "small.opg";
  await debug.enter(SMALL, 4);
  const expectSides = async () => {
    await expect(page.locator(".editor-group-container")).toHaveCount(2);
    const left = (title: string) =>
      workbench.tab(title).evaluate((tab) => tab.getBoundingClientRect().left);
    await expect.poll(async () => (await left(name)) < (await left("Values"))).toBe(true);
  };
  await workbench.command("opstep: Show Table of Values");
  await expectSides();

  await workbench.command("View: Close All Editors");
  await expect(page.locator(".tabs-container .tab")).toHaveCount(0);
  await workbench.openFile(name);
  await expect(page.locator(".editor-group-container")).toHaveCount(1);
  await workbench.command("opstep: Show Table of Values");
  await expectSides();

  // Not by a key or a command: the page of a view may take the focus, and they would close that.
  await workbench.tab(name).locator(".tab-actions .action-label").click();
  await expect(workbench.tab(name)).toHaveCount(0);
  await workbench.openFile(name);
  await expectSides();
  await debug.stop();
});

test("what is wrong with a text is told before sizes are asked for", async ({ workbench }) => {
  const { debug, folder, page } = workbench;
  await folder.write("broken.opg", SIZED.replace("sum(y)", "summ(y)"));
  await workbench.openFile("broken.opg");
  await expect(page.locator(".squiggly-error").first()).toBeVisible();
  await workbench.focusEditor();
  await debug.pressF5();
  const said = workbench.notification(/broken\.opg:3: there is no op or graph summ/);
  await expect(said).toBeVisible();
  await expect(page.locator(".quick-input-widget")).toBeHidden();
  await said.getByRole("button", { name: "Go to Line" }).click();
  await expect(workbench.status(/Ln 3/)).toBeVisible();
});

test("a NaN brings the debug view to the front, and a new run leaves the last report behind", async ({
  workbench,
}) => {
  const { debug, page } = workbench;
  await debug.configure({ ...ENTROPY });
  await workbench.openFile("entropy.opg");
  await expect(page.locator(".explorer-folders-view")).toBeVisible();
  await debug.pressF5();
  await debug.expectStoppedAt(11);
  // Nobody has opened a view or a scope.
  await expect(debug.row("lg")).toContainText("7 -inf of 20");
  const report = await workbench.webview(".why");
  const marks = page.locator(".squiggly-warning");
  await expect(marks.first()).toBeVisible();
  await expect(report.locator(".old")).toBeHidden();
  await debug.stop();

  await debug.configure({ ...ENTROPY, stopOnEntry: true });
  await workbench.focusEditor();
  await debug.pressF5();
  await debug.expectStoppedAt(3);
  await expect(report.locator(".old")).toBeVisible();
  await expect(marks).toHaveCount(0);
  await debug.stop();
});
