/** Takes the pictures of the guides: `make pictures`. Without it nothing here runs. */

import { execFileSync } from "node:child_process";
import { copyFile, cp, readdir } from "node:fs/promises";
import { join } from "node:path";

import { ENTROPY } from "../lib/configurations";
import { opstep } from "../lib/opstep";
import { PICTURES, python, REPOSITORY } from "../lib/paths";
import { expect, test } from "../lib/test";
import type { Workbench } from "../lib/workbench";

test.slow();

test.use({
  settings: {
    "debug.internalConsoleOptions": "neverOpen",
    "editor.fontSize": 13,
    "editor.lightbulb.enabled": "off", // it stands on the code
    "window.title": "opstep",
  },
});

const SIZES = ["--symbol", "N=4", "--symbol", "K=5"];

async function take(workbench: Workbench, name: string): Promise<void> {
  const path = join(PICTURES, `vscode-${name}.png`);
  await workbench.page.screenshot({ path, animations: "disabled", caret: "hide" });
  try {
    execFileSync("pngquant", ["--force", "--skip-if-larger", "--output", path, "--", path]);
  } catch {
    // Without pngquant the file is larger; where it would not be smaller it says so.
  }
}

async function example(workbench: Workbench, name: string): Promise<void> {
  await copyFile(join(REPOSITORY, "examples", name), workbench.folder.at(name));
}

/** A training script whose gradients turn NaN, stopped where its model returns. */
async function training(workbench: Workbench): Promise<void> {
  const { debug, folder } = workbench;
  const line = 26;
  const data = "opstep/data/digits.npz"; // which the script looks for two folders up
  await cp(join(REPOSITORY, "examples/pytorch"), folder.at("pytorch"), { recursive: true });
  await cp(join(REPOSITORY, data), folder.at(join("..", data)));
  await workbench.open(folder.at("pytorch"));
  await workbench.openFile("model.py");
  await debug.setBreakpoint(line);
  await workbench.openFile("train.py");
  await debug.pressF5();
  await expect(workbench.tab("model.py")).toHaveClass(/active/, { timeout: 90_000 });
  await debug.expectStoppedAt(line);
  await debug.view();
}

test.beforeEach(async ({ closed: { folder } }) => {
  for (const name of await readdir(folder.path)) {
    if (name !== "entropy.opg") await folder.delete(name);
  }
});

test("types", async ({ closed: workbench }) => {
  await workbench.open();
  await workbench.openFile("entropy.opg");
  await expect.poll(() => workbench.text()).toMatch(/each\s*:\s*f32\[N\]\s*= information/);
  await workbench.goTo(4, "  p = soft".length + 1);
  await workbench.expectHover("softmax");
  await take(workbench, "types");
});

test("debug", async ({ closed: workbench }) => {
  const { debug, folder } = workbench;
  await folder.launch({ ...ENTROPY, stopOnEntry: true });
  await workbench.open();
  await workbench.openFile("entropy.opg");
  await debug.setBreakpoint(13);
  await debug.pressF5();
  await debug.expectStoppedAt(3);
  await debug.ignoreTrouble();
  await debug.pressF5();
  await debug.expectStoppedAt(13);
  await debug.variable("lg");
  await debug.watch("min(p)");
  await debug.evaluate("where(nan(h))");
  await expect(workbench.page.locator(".repl .monaco-list-row")).toHaveCount(3);
  await expect(debug.frames()).toHaveCount(2);
  await take(workbench, "debug");
});

test("nan", async ({ closed: workbench }) => {
  const { debug } = workbench;
  await workbench.open();
  await debug.enter(ENTROPY, 3);
  await debug.view();
  await debug.filter("Infinity, only where it is born", false);
  await debug.pressF5();
  await debug.expectStoppedAt(12);
  await workbench.command("opstep: Show NaN Report");
  const report = await workbench.webview(".chain");
  await expect(report.locator(".chain .link").first()).toBeVisible();
  await take(workbench, "nan");
});

test("tensor", async ({ closed: workbench }) => {
  const { debug, folder } = workbench;
  await example(workbench, "lenet.opg");
  const digits = `images=${REPOSITORY}/opstep/data/digits.npz:test_images`;
  const weights = `${REPOSITORY}/opstep/data/lenet.safetensors`;
  opstep("run", folder.at("lenet.opg"), "--input", digits, "--params", weights);
  await folder.launch({
    program: "${workspaceFolder}/lenet.opg",
    graph: "main",
    inputs: { images: `${REPOSITORY}/opstep/data/digits.npz:test_images` },
    params: weights,
    stopOnEntry: true,
  });
  await workbench.open();
  await workbench.openFile("lenet.opg");
  await debug.setBreakpoint(20);
  await debug.pressF5();
  await expect(workbench.editor().locator(".debug-top-stack-frame-line")).toHaveCount(1, {
    timeout: 60_000,
  });
  await debug.pressF5();
  await debug.expectStoppedAt(20);
  await debug.view();
  await workbench.command("opstep: Open Tensor…");
  await workbench.answer("r1");
  const view = await workbench.webview("canvas");
  await expect(view.locator('[aria-label="Type"]')).toContainText("f32");
  await take(workbench, "tensor");
});

test("python", async ({ closed: workbench }) => {
  const { debug } = workbench;
  await training(workbench);
  await workbench.command("View: Hide Panel"); // how the script was started is this machine's
  await debug.variable("features", "Locals");
  await workbench.page.locator(".debug-call-stack .monaco-list-row").first().click();
  await take(workbench, "python");
});

test("python-nan", async ({ closed: workbench }) => {
  const { debug } = workbench;
  await training(workbench);
  await debug.filter("model.py", false);
  await debug.filter("Infinity, only where it is born", false);
  await debug.pressF5();
  await expect(workbench.page.locator(".exception-widget")).toBeVisible({ timeout: 120_000 });
  await workbench.command("View: Hide Panel");
  await debug.variable("input", "Operands of .*");
  const report = await workbench.webview(".chain");
  await expect(report.locator(".link.origin").first()).toContainText("the run stands here");
  await workbench.focusEditor();
  await workbench.press("Escape"); // what the exception says is in the report
  await expect(workbench.page.locator(".exception-widget")).toHaveCount(0);
  await take(workbench, "python-nan");

  await workbench.command("opstep: Open Graph View");
  const graph = await workbench.webview("svg .nodes");
  await graph.locator(".node.is-now .expand").click();
  await expect(graph.locator(".node.is-now", { hasText: "pow" })).toBeVisible();
  await graph.getByRole("button", { name: "Fit" }).click();
  await take(workbench, "python-graph");
});

test("graph", async ({ closed: workbench }) => {
  const { debug } = workbench;
  await workbench.open();
  await debug.enter(ENTROPY, 3);
  await debug.next();
  await debug.expectStoppedAt(4);
  await workbench.command("opstep: Open Graph View");
  const view = await workbench.webview("svg .nodes");
  await expect(view.locator(".node.is-now")).toContainText("softmax");
  await take(workbench, "graph");
});

test("timeline", async ({ closed: workbench }) => {
  const { folder } = workbench;
  await example(workbench, "branches.opg");
  const inputs = ["--input", "random", "--symbol", "N=65536", "--streams", "2"];
  const run = ["run", folder.at("branches.opg"), ...inputs];
  opstep(...run); // compiles the kernels, which would be all that the timeline shows
  opstep(...run, "--steps", "3", "--trace", folder.at("run.pftrace"));
  await workbench.open();
  await workbench.openFile("branches.opg");
  await workbench.openOther("run.pftrace");
  const view = await workbench.webview("iframe");
  await expect(view.getByRole("status")).toBeHidden({ timeout: 90_000 });
  await take(workbench, "timeline");
});

/** A step of training by two ranks, each with rows of its own, in the folder. */
async function twoRanks({ folder }: Workbench): Promise<void> {
  const program = [
    "mesh data: 2",
    "",
    "param w: f32[10, 64] = normal(std=0.1)",
    "",
    "graph main(x: f32[8, 64], label: i32[8], rate: f32[]) -> f32[] {",
    "  y = linear(x, w)",
    "  own = softmax_cross_entropy(y, label)",
    '  loss = all_reduce(own, reduction="mean")',
    "  far = softmax_cross_entropy_grad(y, label, 1.0)",
    "  own_dw = matmul(far, x, transpose_a=true)",
    "  dw = all_reduce(own_dw)",
    "  less = mul(dw, rate)",
    "  new = sub(w, less)",
    "  w <- new",
    "  return loss",
    "}",
    "",
  ];
  await folder.write("step.opg", program.join("\n"));
  const save = "np.save(f'x{r}.npy', np.random.default_rng(r).normal(size=(8, 64)).astype('f4'))";
  const script = `import numpy as np\nfor r in (0, 1):\n  ${save}`;
  execFileSync(python(), ["-c", script], { cwd: folder.path });
}

test("ranks", async ({ closed: workbench }) => {
  const { debug, folder } = workbench;
  await twoRanks(workbench);
  await folder.launch({
    program: "${workspaceFolder}/step.opg",
    graph: "main",
    ranks: 2,
    inputs: { x: "x{rank}.npy", label: "0..9", rate: "0.1" },
    stopOnEntry: true,
  });
  await workbench.open();
  await workbench.openFile("step.opg");
  await debug.setBreakpoint(14);
  await debug.pressF5();
  await debug.expectStoppedAt(6);
  await debug.pressF5();
  await debug.expectStoppedAt(14);
  await debug.view();
  await debug.watch("ranks(own)");
  await debug.watch("replicated(new)");
  await debug.evaluate("own_dw@1");
  await take(workbench, "ranks");
});

test("ranks-timeline", async ({ closed: workbench }) => {
  const { folder } = workbench;
  await twoRanks(workbench);
  const inputs = ["x=x{rank}.npy", "label=0..9", "rate=0.1"].flatMap((each) => ["--input", each]);
  const run = ["run", folder.at("step.opg"), "--graph", "main", "--ranks", "2", ...inputs].map(
    (each) => each.replace("x{rank}", folder.at("x{rank}")),
  );
  opstep(...run); // compiles the kernels, which would be all that the timeline shows
  opstep(...run, "--steps", "3", "--trace", folder.at("run.pftrace"));
  await workbench.open();
  await workbench.openFile("step.opg");
  await workbench.openOther("run.pftrace");
  const view = await workbench.webview("iframe");
  await expect(view.getByRole("status")).toBeHidden({ timeout: 90_000 });
  await take(workbench, "ranks-timeline");
});

test("workspace", async ({ closed: workbench }) => {
  const { folder, page } = workbench;
  const run = ["run", folder.at("entropy.opg"), "--input", "random", ...SIZES];
  for (const seed of ["0", "1"]) {
    opstep(...run, "--seed", seed, "--steps", "20", "--workspace", folder.at("runs.db"));
  }
  await workbench.open();
  await workbench.openFile("entropy.opg");
  await page.getByRole("tab", { name: "opstep", exact: true }).click();
  await expect(page.locator(".monaco-list-row", { hasText: "runs.db" }).first()).toBeVisible();
  await workbench.command("opstep: Open Workspace Query");
  const query = await workbench.webview(".cm-content");
  await query.locator(".cm-content").click();
  await workbench.press("Control+a");
  await page.keyboard.insertText(
    "select run, name, line, mean_ns\nfrom slowest_ops\norder by mean_ns desc",
  );
  await workbench.press("Control+Enter");
  await expect(query.locator(".grid-row").first()).toBeVisible();
  await workbench.press("Escape");
  await take(workbench, "workspace");
});
