import { opstep } from "../lib/opstep";
import { expect, test } from "../lib/test";

test.use({ viewport: { width: 1600, height: 1000 } }); // a narrower walkthrough has no pictures

test("commands act on the graph in sight, runs share a terminal and a file, and what worked is ticked", async ({
  closed: workbench,
}) => {
  const { debug, folder, page } = workbench;
  await workbench.open();
  await workbench.openFile("small.opg");

  await workbench.command("opstep: Get Started (Open Walkthrough)");
  const ticked = (title: string) =>
    page
      .locator(".getting-started-step", { hasText: title })
      .locator(".codicon-getting-started-step-checked");
  await expect(ticked("Find Python").first()).toBeVisible();
  await expect(ticked("Open a graph").first()).toBeVisible();
  await expect(ticked("Step through it")).toHaveCount(0);
  await expect(ticked("Query recorded runs")).toHaveCount(0);
  const picture = page.frameLocator("iframe.webview").last().frameLocator("#active-frame");
  await expect(picture.locator("svg text").first()).toBeVisible();

  // The graph behind the page is the one that is meant: nobody asks.
  await workbench.command("opstep: Open Graph View");
  const view = await workbench.webview("header, .toolbar, canvas");
  await view.locator("body").click({ position: { x: 5, y: 5 } });
  await expect(page.locator(".editor-group-container.active .tab.active")).toContainText("Graph");
  await workbench.command("opstep: Show Plan");
  const shared = page.locator(".editor-group-container", { has: workbench.tab(/^Graph/) });
  await expect(shared.locator(".tab.active")).toContainText("Plan: ");
  await expect(shared.locator(".view-lines")).toContainText(/verdict:\s+no\s+races/);
  await workbench.tab(/^Graph/).click();
  await workbench.command("opstep: Run Graph");
  await expect(debug.terminal()).toContainText("positive");
  await workbench.expectTasksEnded();
  const terminals = page.locator(".terminal-tabs-entry, .single-terminal-tab");
  await workbench.command("opstep: Check File");
  await expect(debug.terminal()).toContainText("no errors");
  await workbench.expectTasksEnded();
  await expect(terminals).toHaveCount(1);

  // A workspace that is there gets the run added, and nobody asks whether to overwrite it.
  const input = page.locator(".quick-input-widget input.input");
  const record = async () => {
    await workbench.command("opstep: Run and Record in a Workspace…");
    await expect(input).toHaveValue("20"); // steps
    await input.fill("2");
    await input.press("Enter");
  };
  await record();
  await expect(input).toHaveValue("runs.db");
  await input.press("Enter"); // to the input itself: a terminal that is shown may take the focus
  await expect(input).toBeHidden();
  await expect(debug.terminal()).toContainText(/wrote .*runs\.db/);
  await workbench.expectTasksEnded();
  await record();
  const add = workbench.quickRows().filter({ hasText: "Add to runs.db" });
  await expect(add).toBeVisible();
  await add.click();
  await expect(workbench.dialog(/exist/)).toHaveCount(0);
  const runs = () =>
    JSON.parse(opstep("ws", folder.at("runs.db"), "sql", "select id from runs", "--json"));
  await expect.poll(() => runs().length).toBe(2);
  await expect(terminals).toHaveCount(1);

  // F5 in the view debugs its graph.
  await view.locator("body").click({ position: { x: 5, y: 5 } });
  await debug.pressF5();
  const next = page.locator(".debug-top-stack-frame-line");
  await expect(next).toHaveCount(1);
  await debug.button("Step Over");
  await expect(workbench.status(/Ln 5/)).toBeVisible();
  await workbench.press("Shift+F5");
  await expect(page.locator(".debug-toolbar")).toBeHidden();
  await workbench.tab(/Welcome|Walkthrough/).click();
  await expect(ticked("Step through it").first()).toBeVisible();
  await expect(ticked("Query recorded runs").first()).toBeVisible();
});
