import { ENTROPY, SMALL } from "../lib/configurations";
import { endOf } from "../lib/lineEnds";
import { expect, test } from "../lib/test";

// Rows out of sight do not exist for a page: the list of variables needs room.
test.use({ viewport: { width: 1280, height: 1600 } });

test("variables are shown with their figures, opened, and set", async ({ workbench }) => {
  const { debug } = workbench;
  await debug.enter(SMALL, 4);
  // The debug view comes by itself, and the scope that has something is open.
  await expect(debug.row("x")).toContainText("[1.0, -2.0, 3.0]");
  await debug.next();
  await debug.expectStoppedAt(5);
  await expect(debug.row("y")).toContainText("[2.0, -4.0, 6.0]");
  await expect(await debug.variable("x", "Inputs")).toContainText("[1.0, -2.0, 3.0]");
  const y = await debug.variable("y");
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
  await debug.enter(SMALL, 4);
  await debug.view();
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

test("what is not finite is seen first: in the lines, in Variables and in the table of values", async ({
  workbench,
}) => {
  const { debug, page } = workbench;
  await debug.enter(ENTROPY, 3);
  await expect.poll(() => endOf(workbench, "sharp")).toContain("scores = mean");
  await debug.pressF5();
  await debug.expectStoppedAt(11);
  await debug.pressF5();
  await debug.expectStoppedAt(12);

  // The line has run, unlike one that is next; the types that stand in the lines move no code.
  await expect
    .poll(() => endOf(workbench, "h: f32[N, K] = mul"))
    .toMatch(/^✓ has run {2}7 NaN of 20/);
  expect(await endOf(workbench, "lg: f32[N, K] = log")).toMatch(/^7 -inf of 20, mean of the rest/);
  const h = debug.row("h");
  await expect(h).toContainText("7 NaN of 20, mean of the rest -0.011");
  await expect(h.locator(".value .code-foreground-colored")).toHaveText("7 NaN of 20");
  await debug.evaluate("mean(h)");
  await debug.expectConsole(/^nan, as h has 7 NaN of 20/);

  // The box for another value holds the present one; the row has the icon of the Tensor view.
  await h.hover();
  await expect(h.locator('[aria-label="Open in Tensor View"]')).toBeVisible();
  const input = page.locator(".quick-input-widget input.input");
  await workbench.choose(h, "Edit Value…", input);
  await expect(input).toHaveValue(/^\[\[-?[\d.e-]+, .*nan.*\]\]$/);
  await workbench.press("Escape");
  await expect(input).toBeHidden();

  await workbench.command("opstep: Show Table of Values");
  const table = await workbench.webview(".grid");
  const rows = table.locator(".body .row");
  await expect(rows).toHaveCount(3);
  // Beside the code there is room for what is looked at.
  for (const name of ["name", "type", "NaN", "min", "max", "mean"])
    await expect(table.getByRole("columnheader", { name, exact: true })).toBeInViewport({
      ratio: 1,
    });
  for (const heading of await table.locator(".head button").all())
    expect(await heading.evaluate((e) => e.scrollWidth - e.clientWidth)).toBe(0); // uncut
  await expect(rows.nth(0)).toContainText("lg");
  await expect(rows.nth(1)).toContainText(/h\s*f32\[4, 5\]7-0\.09619\s*0\s*-0\.01128\s*80 B12/);
  await table.getByRole("button", { name: "NaN", exact: true }).click();
  await expect(rows.first()).toContainText("h");
  await table.getByRole("button", { name: "NaN, inf" }).click();
  await expect(rows).toHaveCount(2);
  await table.locator(".filter").fill("lg");
  await expect(rows).toHaveCount(1);
  await workbench.press("Enter", "Home");
  await expect(table.locator(".row.chosen")).toContainText("lg");
  await workbench.press("t");
  const tensor = await workbench.webview('[aria-label="Expression"]');
  await expect(tensor.locator('[aria-label="Type"]')).toHaveText("f32[4, 5]");
  await workbench.tab("Values").click();
  await table.locator(".filter").fill("");
  // A row was clicked all the same if the table is drawn anew while it is pressed.
  await rows.filter({ hasText: "lg" }).hover();
  await page.mouse.down();
  await table.locator(".filter").dispatchEvent("input");
  await page.mouse.up();
  await expect(page.locator(".line-numbers.active-line-number")).toHaveText("11");
  await rows.filter({ hasText: /^h/ }).dblclick();
  await expect(workbench.tab(/^Tensor: h$/)).toBeVisible();
  await workbench.tab("Values").click();

  // It follows the run, and so do the lines.
  await workbench.tab("entropy.opg").click();
  await debug.button("Step Back");
  await expect(table.locator(".count")).toContainText("1 of 2 values, 1 not finite");
  await debug.expectStoppedAt(12);
  await expect.poll(() => endOf(workbench, "h: f32[N, K] = mul")).toMatch(/^p = mean/);
  await debug.stop();
});
