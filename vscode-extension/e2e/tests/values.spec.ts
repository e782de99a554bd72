import { SMALL } from "../lib/configurations";
import { expect, test } from "../lib/test";

// Rows out of sight do not exist for a page: the list of variables needs room.
test.use({ viewport: { width: 1280, height: 1600 } });

test.beforeEach(async ({ workbench }) => {
  await workbench.debug.enter(SMALL, 4);
  await workbench.debug.view();
});

test("variables are shown with their figures, opened, and set", async ({ workbench }) => {
  const { debug } = workbench;
  await debug.next();
  await debug.expectStoppedAt(5);
  await expect(await debug.variable("x", "Inputs")).toContainText("[1.0, -2.0, 3.0]");
  const y = await debug.variable("y");
  await expect(y).toContainText("[2.0, -4.0, 6.0]");
  await debug.expand(y);
  await expect(debug.row("[1]")).toContainText("-4");

  await debug.setValue(debug.row("[1]"), "10");
  await expect(await debug.variable("y")).toContainText("[2.0, 10.0, 6.0]");
  await debug.next();
  await debug.expectStoppedAt(6);
  await expect(await debug.variable("positive")).toContainText("[2.0, 10.0, 6.0]");
  await debug.stop();
});

test("watches and the console take expressions; a data breakpoint stops behind a change", async ({
  workbench,
}) => {
  const { debug } = workbench;
  await debug.next();
  await debug.expectStoppedAt(5);
  const watch = await debug.watch("max(abs(y))");
  await expect(watch).toContainText("6");
  await debug.evaluate("y[0, 3]");
  await debug.expectConsole(/has 1 (axis|dim)|too many|2 indices/);
  await debug.evaluate("sum(y) + 1");
  await debug.expectConsole(/^5/);

  await debug.breakOnChange(await debug.variable("total", "Params"));
  await workbench.focusEditor();
  await debug.pressF5();
  await debug.expectStoppedAt(7);
  await expect(await debug.variable("total", "Params")).toContainText("8.0");
  await debug.stop();
});
