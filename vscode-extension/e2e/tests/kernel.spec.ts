import { expect, test } from "../lib/test";

test("from a stop into the kernel: Python frames in a session of its own", async ({
  workbench,
  folder,
  page,
}) => {
  const { debug } = workbench;
  test.slow();
  await folder.launch({
    program: "${workspaceFolder}/small.opg",
    inputs: { x: [1, -2, 3] },
    stopOnEntry: true,
  });
  await workbench.openFile("small.opg");
  await debug.pressF5();
  await debug.expectStoppedAt(4);
  await debug.next();
  await debug.expectStoppedAt(5);
  await workbench.command("opstep: Step into a Kernel…");
  await expect(page.locator(".quick-input-titlebar", { hasText: "Which kernel?" })).toBeVisible();
  await workbench.press("Enter");
  const first = workbench.quickRows().filter({ hasText: "First thread of the first block" });
  await expect(first).toBeVisible();
  await workbench.press("Enter");
  await debug.view();
  await expect(debug.frames().filter({ hasText: ".py" }).first()).toBeVisible({ timeout: 60_000 });
});
