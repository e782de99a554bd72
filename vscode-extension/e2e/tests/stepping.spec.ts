import { ENTROPY } from "../lib/configurations";
import { expect, test } from "../lib/test";

test("F5 stops at the entry; steps go over, into, out of and back; a breakpoint is set meanwhile", async ({
  workbench,
}) => {
  const { debug } = workbench;
  await debug.enter(ENTROPY, 3);
  await debug.ignoreTrouble();
  await debug.next();
  await debug.expectStoppedAt(4);
  await debug.next();
  await debug.expectStoppedAt(5);
  await debug.stepIn();
  await debug.expectStoppedAt(11);
  await debug.view();
  await expect(debug.frames()).toHaveCount(2);
  await debug.next();
  await debug.expectStoppedAt(12);
  await debug.button("Step Back");
  await debug.expectStoppedAt(11);
  await debug.stepOut();
  await debug.expectStoppedAt(6);
  await debug.button("Step Back");
  await debug.expectStoppedAt(5);

  // A breakpoint that is set meanwhile moves to the statement that is next.
  await workbench.focusEditor();
  await debug.setBreakpoint(10);
  await debug.pressF5();
  await debug.expectStoppedAt(11);
  await debug.pressF5();
  // The result is NaN: it is there to be seen before the session ends.
  await debug.expectStoppedAt(7);
  await debug.pressF5();
  await debug.expectEnded();
});

test("the run goes backwards to a breakpoint, and to its begin", async ({ workbench }) => {
  const { debug } = workbench;
  await debug.configure({ ...ENTROPY, stopOnEntry: true });
  await workbench.openFile("entropy.opg");
  await debug.setBreakpoint(4);
  await debug.setBreakpoint(13);
  await debug.pressF5();
  await debug.expectStoppedAt(3);
  await debug.ignoreTrouble();
  await debug.pressF5();
  await debug.expectStoppedAt(4);
  await debug.pressF5();
  await debug.expectStoppedAt(13);
  await debug.button("Reverse");
  await debug.expectStoppedAt(4);
  await debug.button("Reverse");
  await debug.expectStoppedAt(3);
  await debug.stop();
});

test("a breakpoint with a condition over a tensor stops; a log point writes, and does not", async ({
  workbench,
}) => {
  const { debug } = workbench;
  await debug.configure({ ...ENTROPY, stopOnEntry: true });
  await workbench.openFile("entropy.opg");
  await debug.setCondition(4, "Conditional Breakpoint", "max(sharp) > 1e9");
  await debug.setCondition(12, "Logpoint", "the least is {min(lg)}");
  await debug.setCondition(13, "Conditional Breakpoint", "inf(lg) and min(p) == 0");
  await debug.pressF5();
  await debug.expectStoppedAt(3);
  await debug.ignoreTrouble();
  await debug.pressF5();
  await debug.expectStoppedAt(13);
  await debug.expectConsole("the least is -inf");
  await debug.stop();
});

test("a step goes into an op that is a graph of others, whose text opens", async ({
  workbench,
}) => {
  const { debug } = workbench;
  await debug.enter(ENTROPY, 3);
  await debug.ignoreTrouble();
  await workbench.command("opstep: Open Graph View");
  const view = await workbench.webview("svg .nodes");
  await workbench.focusEditor();
  await debug.next();
  await debug.expectStoppedAt(4);
  await debug.stepIn();
  await expect(workbench.tab("<softmax>")).toHaveClass(/active/);
  await debug.expectStoppedAt(2);
  await debug.view();
  await expect(debug.frames()).toHaveText([/^p = softmax/, /^main/]);
  await expect(view.locator("g.node.is-now")).toContainText("p = softmax");
  await debug.next();
  await debug.expectStoppedAt(3);
  await debug.stepOut();
  await expect(workbench.tab("entropy.opg")).toHaveClass(/active/);
  await debug.expectStoppedAt(5);
  await expect(view.locator("g.node.is-done")).toContainText(["sharp = mul", "p = softmax"]);
  await debug.stop();
});
