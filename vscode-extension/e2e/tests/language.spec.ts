import { expect, test } from "../lib/test";

test("a graph is coloured", async ({ workbench }) => {
  await workbench.openFile("entropy.opg");
  const classes = await workbench
    .editor()
    .locator(".view-line span span[class*=mtk]")
    .evaluateAll((spans) => new Set(spans.map((s) => s.className)).size);
  expect(classes).toBeGreaterThan(3);
});
