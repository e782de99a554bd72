import { ENTROPY } from "../lib/configurations";
import { expect, test } from "../lib/test";

test("the Graph view goes into calls, opens them in place, and follows the text", async ({
  workbench,
  page,
}) => {
  await workbench.openFile("entropy.opg");
  await workbench.goTo(3);
  await workbench.command("opstep: Open Graph View");
  const view = await workbench.webview("svg .nodes");
  const path = view.locator(".path");
  const call = view.locator("g.node.call", { hasText: "each = information" });
  await expect(view.locator("g.node.cursor")).toContainText("sharp = mul");

  await call.locator(".expand").click();
  const frame = view.locator("g.frame", { hasText: "each = information" });
  await expect(frame).toBeVisible();
  await expect(view.locator("g.node", { hasText: "lg = log" })).toBeVisible();
  await frame.locator(".collapse").click();
  await expect(view.locator("g.node", { hasText: "lg = log" })).toHaveCount(0);

  await call.locator(".body").dblclick();
  await expect(path).toHaveText("main›information");
  await expect(view.locator("g.node", { hasText: "lg = log" })).toBeVisible();
  await path.getByRole("button", { name: "main" }).click();
  await expect(call).toBeVisible();

  // What is typed is drawn, types and mistakes with it.
  await workbench.tab("entropy.opg").click();
  await workbench.goTo(4);
  await workbench.press("End", "Enter");
  await workbench.type("more = exp(p)");
  const made = view.locator("g.node", { hasText: "more = exp" });
  await expect(made).toContainText("f32[N, K]");
  await workbench.press("Backspace", "Backspace");
  await workbench.type("q)");
  await expect(made).toHaveClass(/problem/);
  await expect(page.locator(".tab", { hasText: "Graph: main" })).toBeVisible();
});

test("it shows what runs next, breakpoints are set on nodes, and a click goes to a line", async ({
  workbench,
  folder,
}) => {
  const { debug } = workbench;
  await folder.launch({ ...ENTROPY, stopOnEntry: true });
  await workbench.openFile("entropy.opg");
  await workbench.goTo(3);
  await workbench.command("opstep: Open Graph View");
  const view = await workbench.webview("svg .nodes");
  const call = view.locator("g.node.call", { hasText: "each = information" });
  await call.locator(".expand").click();
  const log = view.locator("g.node", { hasText: "lg = log" });
  await log.locator(".target").click();
  await expect(log).toHaveClass(/breaks-on/);
  await workbench.tab("entropy.opg").click();
  await debug.pressF5();
  await debug.expectStoppedAt(3);
  await expect(view.locator("g.node.is-now")).toContainText("sharp = mul");
  await debug.button("Step Over");
  await expect(view.locator("g.node.is-now")).toContainText("p = softmax");
  await expect(view.locator("g.node.is-done")).toContainText(["sharp = mul"]);
  await workbench.focusEditor();
  await debug.pressF5();
  await debug.expectStoppedAt(11);
  await expect(view.locator(".path")).toHaveText("main›information");
  const there = view.locator("g.node.is-now");
  await expect(there).toContainText("lg = log");
  await expect(there).toHaveClass(/breaks-on/);
  await debug.next();
  await debug.expectStoppedAt(12);
  // What has run shows its figures in place of its type.
  const done = view.locator("g.node.is-done", { hasText: "lg = log" });
  await expect(done.locator(".types")).toHaveText(/inf|±/);
  await debug.stop();
  await expect(view.locator("g.node.is-now")).toHaveCount(0);

  await view.locator("g.node", { hasText: "h = mul" }).locator(".body").click();
  // The graph keeps the focus; without it an editor does not tell where its cursor is.
  await workbench.tab("entropy.opg").click();
  await expect(workbench.status(/Ln 12/)).toBeVisible();
});

test("keys walk along the edges, search finds, a picture is saved", async ({
  workbench,
  folder,
}) => {
  await workbench.openFile("entropy.opg");
  await workbench.goTo(3);
  await workbench.command("opstep: Open Graph View");
  const view = await workbench.webview("svg .nodes");
  await expect(view.locator("g.node.cursor")).toBeVisible();
  const surface = view.locator("svg.surface");
  const toGraph = () =>
    expect(async () => {
      await surface.click({ position: { x: 20, y: 200 } }); // where nothing is drawn
      await expect(surface).toBeFocused({ timeout: 3_000 });
    }).toPass();
  await toGraph();
  await workbench.press("Home", "ArrowDown", "ArrowDown");
  await expect(view.locator("g.node.chosen")).toContainText("each = information");
  await workbench.press("ArrowUp");
  await expect(view.locator("g.node.chosen")).toContainText("p = softmax");
  await workbench.press("Enter");
  await expect(workbench.status(/Ln 4/)).toBeVisible();

  // The editor that Enter went to takes the keys in its own time.
  await expect(async () => {
    await toGraph();
    await workbench.press("Control+f");
    await expect(view.getByRole("searchbox")).toBeFocused({ timeout: 1_000 });
  }).toPass();
  await view.getByRole("searchbox").fill("mean");
  await expect(view.locator(".count")).toHaveText("2 found");
  await expect(view.locator("g.node.found").first()).toContainText("mean");

  await view.getByRole("button", { name: "Save the picture as SVG" }).click();
  await workbench.chooseFile(/main\.svg$/, folder.at("flow.svg"));
  await expect(async () => {
    expect(await folder.read("flow.svg")).toMatch(/^<svg[\s\S]*softmax[\s\S]*<\/svg>$/);
  }).toPass();
});
