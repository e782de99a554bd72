import { SMALL } from "../lib/configurations";
import { expect, test } from "../lib/test";

test("from a stop into the kernel: Python frames in a session of its own", async ({
  workbench,
  page,
}) => {
  const { debug } = workbench;
  test.slow();
  await debug.enter(SMALL, 4);
  await debug.next();
  await debug.expectStoppedAt(5);
  await workbench.command("opstep: Step into a Kernel…");
  await expect(page.locator(".quick-input-titlebar", { hasText: "Which kernel?" })).toBeVisible();
  await workbench.press("Enter");
  const first = workbench.quickRows().filter({ hasText: "First thread of the first block" });
  await expect(first).toBeVisible();
  await workbench.press("Enter");
  await debug.view();
  await expect(debug.frames().filter({ hasText: ".py" }).first()).toBeVisible({ timeout: 240_000 });
});
