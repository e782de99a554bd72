import { endOf } from "../lib/lineEnds";
import { expect, test } from "../lib/test";

/** Lines of net.py. */
const TOTAL = 8;
const MEAN = 10;
const STATES = 23;
const RESULT = 24;

test("F5 on a training script stops in its model, and where a NaN is born", async ({
  workbench,
}) => {
  const { debug, page } = workbench;
  test.slow(); // PyTorch is imported, and compiles
  await workbench.openFile("net.py");
  await debug.setBreakpoint(STATES);
  await workbench.openFile("train.py");
  await debug.pressF5();
  await expect(workbench.tab("net.py")).toHaveClass(/active/, { timeout: 120_000 });
  await debug.expectStoppedAt(STATES);
  await debug.view();
  await expect(debug.frames()).toHaveText([/^Classifier\.forward/, /^<module>/]);
  await expect(await debug.variable("words", "Locals")).toContainText("i64[8, 12]");
  await debug.next();
  await debug.expectStoppedAt(RESULT);
  await expect
    .poll(() => workbench.text())
    .toMatch(/embedding\(words\)\)\s*states = f32\[8, 12, 16\]/);
  await debug.stepIn();
  await debug.expectStoppedAt(TOTAL);
  await expect(debug.frames().first()).toContainText("Pooling.forward (pooling)");
  await debug.button("Step Back");
  await debug.expectStoppedAt(RESULT);

  await workbench.command("opstep: Switch between Python and the Graph");
  await expect.poll(() => workbench.text()).toContain("pooling, count = Pooling(states, mask)");
  await expect(workbench.status("opstep graph")).toBeVisible();
  await workbench.command("opstep: Switch between Python and the Graph");
  await debug.expectStoppedAt(RESULT);

  await workbench.command("opstep: Open Tensor…");
  await expect(workbench.quickRows().first()).toContainText(/^words/); // Python's variables first
  await workbench.answer("states");
  const view = await workbench.webview("canvas");
  await expect(view.locator('[aria-label="Type"]')).toHaveText("f32[8, 12, 16]");

  await debug.filter("net.py", false);
  await debug.pressF5();
  await expect(page.locator(".exception-widget .stack-trace")).toContainText(`net.py:${MEAN})`);
  await debug.expectStoppedAt(MEAN);
  await expect
    .poll(() => endOf(workbench, "return total / count"))
    .toMatch(/^✓ has run {2}div = 16 NaN of 128/);
  const report = await workbench.webview(".chain");
  await expect(report.locator(".here")).toHaveText("the run stands here");
  await debug.expectConsole("step 0: loss");
  await debug.stop();
});
