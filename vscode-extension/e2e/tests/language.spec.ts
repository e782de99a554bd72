import { expect, test } from "../lib/test";

test("hover explains; a mistake is marked as it is typed, and mended by a quick fix", async ({
  workbench,
}) => {
  const { page } = workbench;
  await workbench.openFile("small.opg");
  const classes = await workbench
    .editor()
    .locator(".view-line span span[class*=mtk]")
    .evaluateAll((spans) => new Set(spans.map((s) => s.className)).size);
  expect(classes).toBeGreaterThan(3);

  await workbench.goTo(5, "  positive = re".length + 1);
  await workbench.expectHover("max(x, 0)");
  await workbench.press("Escape");
  await workbench.goTo(4, "  y".length + 1);
  await workbench.expectHover("f32[3]");
  await workbench.press("Escape");

  await workbench.goTo(5, "  positive = relu".length + 1);
  await workbench.type("u");
  await expect(workbench.editor().locator(".squiggly-error")).toHaveCount(1);
  await workbench.press("Control+Shift+M");
  const problem = page.locator(".markers-panel .monaco-list-row", { hasText: "reluu" });
  await expect(problem).toContainText("there is no op or graph reluu");
  await workbench.focusEditor();
  await workbench.goTo(5, "  positive = rel".length + 1);
  await workbench.fix("relu");
  await expect(workbench.editor().locator(".squiggly-error")).toHaveCount(0);
  expect(await workbench.text()).toMatch(/= relu\(y\)/);

  // An axis that is not there, and a type that the graph does not return.
  await workbench.goTo(6, "  added = sum(positive".length + 1);
  await workbench.type(", axes=[1]");
  await expect(workbench.editor().locator(".squiggly-error")).toHaveCount(1);
  await workbench.goTo(6, "  added = sum(positive, axes=[".length + 1);
  await workbench.fix("Change axes to [0]");
  await expect(workbench.editor().locator(".squiggly-error")).toHaveCount(0);
  await workbench.goTo(3, "graph main(x: f32[3]) -> f32[3".length + 1);
  await workbench.type("0");
  await workbench.goTo(8, "  return pos".length + 1);
  await workbench.fix("Declare that main returns f32[3]");
  await expect.poll(() => workbench.text()).toContain("-> f32[3] {");

  // The call's form stands above the line, where suggestions do not cover it.
  await workbench.goTo(3, "graph main(x: f32[3]) -> f32[3] {".length + 1);
  await workbench.press("Enter");
  await workbench.type("r = softmax(x");
  const form = page.locator(".parameter-hints-widget.visible");
  const list = page.locator(".suggest-widget.visible");
  await expect(form).toContainText("softmax(");
  await workbench.expectSuggested("x");
  const [a, b] = [await form.boundingBox(), await list.boundingBox()];
  expect(a && b && (a.y + a.height <= b.y || b.y + b.height <= a.y)).toBe(true);
});

test("types, definitions, the outline, formatting, lenses, renaming and completion", async ({
  workbench,
}) => {
  const { folder, page } = workbench;
  const name = folder.unused("entropy.opg");
  await folder.write(name, await folder.read("entropy.opg"));
  await workbench.openFile(name);
  await expect.poll(() => workbench.text()).toMatch(/each\s*:\s*f32\[N\]\s*= information/);

  await workbench.goTo(5, "  each = infor".length + 1);
  await workbench.press("F12");
  await expect(workbench.status(/Ln 10/)).toBeVisible();
  await workbench.pick(() => workbench.press("Control+Shift+O"), "@information", "information");
  await workbench.goTo(4, "  p = softmax(".length + 1);
  await workbench.type("   ");
  await expect.poll(() => workbench.text()).toContain("softmax(   sharp)");
  await workbench.command("Format Document");
  await expect.poll(() => workbench.text()).toContain("softmax(sharp)");
  await workbench.save();

  const lens = page.locator(".codelens-decoration a", { hasText: "Debug" });
  await expect(lens).toHaveCount(2);
  await workbench.answer("N=4, K=5", lens.first());
  await workbench.debug.expectStoppedAt(3);
  await workbench.debug.stop();

  await workbench.focusEditor();
  await workbench.goTo(11, "  l".length + 1);
  await workbench.press("F2");
  const box = page.locator(".rename-box input");
  await expect(box).toBeFocused();
  await box.fill("logs");
  await workbench.press("Enter");
  await expect.poll(() => workbench.text()).toMatch(/logs\b.*= log\(p\)/);
  expect(await workbench.text()).toMatch(/= mul\(p, logs\)/);
  expect(await workbench.text()).not.toMatch(/\blg\b/);

  await workbench.goTo(13, "  total = sum(h, axes=[1])".length + 1);
  await workbench.press("Enter");
  await workbench.type("r = softm");
  await workbench.expectSuggested("softmax");
  await workbench.press("Tab");
  await expect.poll(() => workbench.text()).toContain("r = softmax(");
  await workbench.type("l");
  await workbench.expectSuggested("logs");
});
