import { ENTROPY } from "../lib/configurations";
import { opstep } from "../lib/opstep";
import { expect, test } from "../lib/test";

const SIZES = ["--input", "random", "--symbol", "N=4", "--symbol", "K=5"];

test("the Graph view shows what runs next, and a click goes to its line", async ({
  workbench,
  folder,
  page,
}) => {
  const { debug } = workbench;
  await folder.launch({ ...ENTROPY, stopOnEntry: true });
  await workbench.openFile("entropy.opg");
  await debug.pressF5();
  await debug.expectStoppedAt(3);
  await workbench.command("opstep: Open Graph View");
  const view = await workbench.webview("svg .nodes");
  await expect(view.locator(".node", { hasText: "softmax" })).toBeVisible();
  await expect(view.locator(".node.cursor")).toContainText("mul");
  await expect(view.locator(".node.is-now")).toContainText("mul");
  await workbench.debug.button("Step Over");
  await expect(view.locator(".node.is-now")).toContainText("softmax");
  await expect(view.locator(".node.is-done")).toContainText(["mul"]);
  await view.locator(".node", { hasText: "mean = mean" }).locator(".body").click();
  // The graph keeps the focus; without it an editor does not tell where its cursor is.
  await workbench.tab("entropy.opg").click();
  await expect(page.locator('.statusbar-item[id="status.editor.selection"]')).toContainText("Ln 6");
});

test("the Workspace view lists runs, and a question has rows", async ({
  closed: workbench,
  server,
  folder,
  page,
}) => {
  opstep(
    "run",
    folder.at("entropy.opg"),
    ...SIZES,
    "--steps",
    "3",
    "--workspace",
    folder.at("runs.db"),
  );
  await workbench.open(server.url);
  await workbench.openFile("entropy.opg");
  await page.getByRole("tab", { name: "opstep", exact: true }).click();
  const tree = page.locator(".tree-explorer-viewlet-tree-view .monaco-list-row");
  await expect(tree.filter({ hasText: "runs.db" }).first()).toBeVisible();
  await workbench.command("opstep: Open Workspace Query");
  const query = await workbench.webview(".cm-content");
  await query.locator(".cm-content").click();
  await workbench.press("Control+a");
  await page.keyboard.insertText("select name, op, line from slowest_ops order by line");
  await workbench.press("Control+Enter");
  await expect(query.locator(".grid-row").first()).toContainText("mul");
  await expect(query.locator(".grid-row")).toHaveCount(7);
});
