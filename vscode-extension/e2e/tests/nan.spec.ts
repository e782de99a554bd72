import { ENTROPY } from "../lib/configurations";
import { expect, test } from "../lib/test";

test("a NaN stops where it is born, and its report says why", async ({
  workbench,
  folder,
  page,
}) => {
  const { debug } = workbench;
  await folder.launch({ ...ENTROPY, stopOnEntry: true });
  await workbench.openFile("entropy.opg");
  await debug.pressF5();
  await debug.expectStoppedAt(3);
  await debug.view();
  await debug.filter("NaN, only where it is born", true);
  await debug.pressF5();
  await debug.expectStoppedAt(12);
  const widget = page.locator(".exception-widget");
  await expect(widget).toContainText("NaN");
  await expect(widget).toContainText("h, the result of mul");
  await debug.stop();
});
