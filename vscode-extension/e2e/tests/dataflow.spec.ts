import { ENTROPY } from "../lib/configurations";
import { expect, test } from "../lib/test";

const WEIGHTED = `param a.w: f32[4, 4] = normal(std=0.1)
param a.b: f32[4] = zeros()
param b.w: f32[4, 4] = normal(std=0.1)
param b.b: f32[4] = zeros()

graph main(x: f32[2, 4]) -> f32[2, 4] {
  low, high = split(x, sizes=[2, 2], axis=1)
  back = concat(low, high, axis=1)
  x1 = layer(back, a.w, a.b)
  y = layer(x1, b.w, b.b)
  return y
}

graph layer(x: f32[2, 4], w: f32[4, 4], b: f32[4]) -> f32[2, 4] {
  h = linear(x, w, b)
  r = relu(h)
  return r
}
`;

test("the Graph view goes into calls, opens them in place, and follows the text", async ({
  workbench,
}) => {
  const { page } = workbench;
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
  await expect(path).toHaveText("main›each = information");
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
}) => {
  const { debug } = workbench;
  await debug.configure({ ...ENTROPY, stopOnEntry: true });
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
  await debug.ignoreTrouble();
  await expect(view.locator("g.node.is-now")).toContainText("sharp = mul");
  await debug.button("Step Over");
  await expect(view.locator("g.node.is-now")).toContainText("p = softmax");
  await expect(view.locator("g.node.is-done")).toContainText(["sharp = mul"]);
  await workbench.focusEditor();
  await debug.pressF5();
  await debug.expectStoppedAt(11);
  await expect(view.locator(".path")).toHaveText("main›each = information");
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

test("a call in which a NaN was born is red, also when the run is over", async ({ workbench }) => {
  const { debug } = workbench;
  await debug.enter(ENTROPY, 3);
  await workbench.command("opstep: Open Graph View");
  const view = await workbench.webview("svg .nodes");
  await workbench.focusEditor();
  for (const line of [11, 12]) {
    await debug.pressF5();
    await debug.expectStoppedAt(line);
  }
  await expect(view.locator("g.node.tainted")).toContainText(["lg = log", "h = mul"]);
  await debug.pressF5();
  const call = view.locator("g.node.call", { hasText: "each = information" });
  await expect(call).toHaveClass(/tainted/);
  await expect(view.locator("g.node", { hasText: "p = softmax" })).not.toHaveClass(/tainted/);
  await debug.pressF5();
  await debug.expectEnded();
  await expect(call).toHaveClass(/tainted/);
});

test("keys walk along the edges, search finds, a picture is saved", async ({ workbench }) => {
  const { folder } = workbench;
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
  // The editor that Enter went to takes the keys in its own time, also from a box that is typed in.
  await expect(workbench.page.locator(".monaco-editor.focused")).toBeVisible();

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

test.describe("in a small window", () => {
  test.use({ viewport: { width: 1024, height: 700 } });

  test("views share one group, which no text is opened in, below the code", async ({
    workbench,
  }) => {
    const { debug, page } = workbench;
    await debug.configure(ENTROPY);
    await workbench.openFile("entropy.opg");
    await workbench.command("opstep: Open Graph View");
    await workbench.webview("svg .nodes");
    const groups = page.locator(".editor-group-container");
    const views = groups.filter({ has: page.locator(".tab", { hasText: "Graph: " }) });
    const code = groups.filter({ has: page.locator('.tab[data-resource-name="entropy.opg"]') });
    await expect(async () => {
      const [above, below] = [await code.boundingBox(), await views.boundingBox()];
      expect(below?.y).toBeGreaterThan((above?.y ?? 0) + 200);
      expect(below?.height).toBeGreaterThan(250);
      expect(below?.width).toBeGreaterThan(600);
    }).toPass();
    // The picture was drawn for a column: it is in the middle of the wider view, too.
    const first = (await workbench.webview("svg .nodes")).locator("g.node").first();
    await expect(async () => {
      const [view, node] = [await views.boundingBox(), await first.boundingBox()];
      const middle = (box: typeof view) => (box?.x ?? 0) + (box?.width ?? 0) / 2;
      expect(Math.abs(middle(node) - middle(view))).toBeLessThan(20);
    }).toPass();

    await workbench.focusEditor();
    await debug.pressF5();
    await expect(views.locator(".tab", { hasText: "NaN Report" })).toBeVisible();
    await expect(groups).toHaveCount(2);
    // The exception has a line and a place; the rest is in the report.
    const exception = page.locator(".exception-widget");
    await expect(exception.locator(".description")).toHaveText(
      /^lg, the result of log: \d+ infinite of 20 elements \(log of 0\)$/,
    );
    await expect(exception.locator(".stack-trace a")).toHaveText(/entropy\.opg:11$/);
    await debug.view();
    await expect(debug.frames()).toContainText(["each = information", "main"]);

    // From a view, a text goes to the code.
    await views.locator(".tab", { hasText: "NaN Report" }).click();
    await workbench.pick(() => workbench.press("Control+p"), "net.py", "net.py");
    await expect(code.locator('.tab[data-resource-name="net.py"]')).toBeVisible();
    await expect(groups).toHaveCount(2);
  });
});

test("weights are written in the ops that read them", async ({ workbench }) => {
  const { folder } = workbench;
  await folder.write("weighted.opg", WEIGHTED);
  await workbench.openFile("weighted.opg");
  await workbench.goTo(9);
  await workbench.command("opstep: Open Graph View");
  const view = await workbench.webview("svg .nodes");
  const second = view.locator("g.node.call", { hasText: "y = layer" });
  await expect(second.locator(".weight")).toHaveText([/b\.w.*f32\[4, 4\]/, /b\.b.*f32\[4\]/]);
  await expect(view.locator("g.node.param")).toHaveCount(0);
  await second.locator(".expand").click();
  await expect(view.locator("g.node", { hasText: "h = linear" }).locator(".weight")).toHaveCount(2);
  await view.getByRole("button", { name: /Draw params/ }).click();
  await expect(view.locator("g.node.param")).toHaveCount(4);
  await view.getByRole("button", { name: /Draw params/ }).click();
  // Two edges of one node say which of its results they carry; no other edge does.
  await expect(view.locator(".wires .label")).toHaveText(["low", "high"]);
});
