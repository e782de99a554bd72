import { expect, test } from "../lib/test";

/** Lines of net.py. */
const TOTAL = 8;
const MEAN = 10;
const STATES = 23;
const RESULT = 24;

test.slow(); // PyTorch is imported

test("F5 on a training script stops in its model, and where a NaN is born", async ({
  workbench,
}) => {
  const { debug, page } = workbench;
  await workbench.openFile("net.py");
  await debug.setBreakpoint(STATES);
  await workbench.openFile("train.py");
  await debug.pressF5();
  await expect(workbench.tab("net.py")).toHaveClass(/active/, { timeout: 120_000 });
  await debug.expectStoppedAt(STATES);
  await debug.view();
  await expect(debug.frames()).toHaveText([/^forward/, /^<module>/]);
  await expect(await debug.variable("words", "Locals")).toContainText("i64[8, 12]");
  await debug.next();
  await debug.expectStoppedAt(RESULT);
  await debug.stepIn();
  await debug.expectStoppedAt(TOTAL);

  // What asks for a graph is not offered.
  await expect(workbench.status("stepping")).toHaveCount(0);
  await workbench.press("F1");
  await workbench.type("Step into a Kernel");
  await expect(workbench.quickRows().filter({ hasText: "Step Into" }).first()).toBeVisible();
  await expect(workbench.quickRows().filter({ hasText: "Kernel" })).toHaveCount(0);
  await workbench.press("Escape");

  await debug.filter("net.py", false);
  await workbench.focusEditor();
  await debug.pressF5();
  await expect(page.locator(".exception-widget")).toContainText("nan");
  await debug.expectStoppedAt(MEAN);
  await expect(debug.terminal()).toContainText("step 0: loss");
  await debug.stop();
});

test("what is under the mouse, and at the ends of lines, has a shape and figures", async ({
  workbench,
}) => {
  const { debug } = workbench;
  await workbench.openFile("net.py");
  await debug.setBreakpoint(RESULT);
  await workbench.openFile("train.py");
  await debug.pressF5();
  await expect(workbench.tab("net.py")).toHaveClass(/active/, { timeout: 120_000 });
  await debug.expectStoppedAt(RESULT);
  await expect.poll(() => workbench.text()).toMatch(/words\):\s*words = i64\[8, 12\]/);
  await expect.poll(() => workbench.text()).toMatch(/float\(\)\s*mask = f32\[8, 12\]/);
  await expect(await debug.hover("return self.out", "states")).toContainText(
    /f32\[8, 12, 16\]\s+mean \S+\s+std/,
  );
  await debug.stop();
});
