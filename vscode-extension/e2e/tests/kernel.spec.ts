import { SMALL } from "../lib/configurations";
import { expect, test } from "../lib/test";

test("from a stop into the kernel: Python frames in a session of its own", async ({
  workbench,
}) => {
  const { debug, page } = workbench;
  test.slow();
  await debug.enter(SMALL, 4);
  await debug.next();
  await debug.expectStoppedAt(5);
  await workbench.command("opstep: Step into a Kernel…");
  await expect(page.locator(".quick-input-titlebar", { hasText: "Which kernel?" })).toBeVisible();
  await expect(workbench.quickRows().first()).toContainText("on the CPU, work item 0");
  await workbench.press("F10");
  await expect(page.locator(".quick-input-widget")).toBeHidden(); // it was about line 5
  await debug.expectStoppedAt(6);
  await debug.button("Step Back");
  await debug.expectStoppedAt(5);
  await workbench.command("opstep: Step into a Kernel…");
  await workbench.answer("block (0,0,0)");
  await debug.view();
  await expect(debug.frames().filter({ hasText: ".py" }).first()).toBeVisible({ timeout: 120_000 });

  // Keys act on what is in front: the kernel, and the graph again when that has ended.
  const python = page.locator(
    ".editor-group-container.active .tab.active[data-resource-name$='.py']",
  );
  await expect(python).toBeVisible();
  await expect(workbench.status(/stepping kernel/)).toBeVisible();
  await debug.expectStoppedAt(2);
  await debug.next();
  await debug.expectStoppedAt(3);
  await expect(python).toBeVisible();
  await debug.pressF5();
  await expect(workbench.status("stepping graph main")).toBeVisible();
  await expect(workbench.tab("small.opg")).toHaveClass(/active/);
  await debug.expectStoppedAt(5);
  await debug.next();
  await debug.expectStoppedAt(6);
});
