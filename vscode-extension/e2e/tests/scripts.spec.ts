/** PyTorch scripts in terminals, and those that one attaches to. */

import { type ChildProcess, spawn } from "node:child_process";
import { endOf } from "../lib/lineEnds";
import { CACHE } from "../lib/opstep";
import { python } from "../lib/paths";
import { freePort } from "../lib/server";
import { expect, test } from "../lib/test";

/** Lines of net.py and of scaled.py. */
const STATES = 23;
const RESULT = 24;
const SUM = 19;

test.slow(); // PyTorch is imported, and compiles

/** A Python that a person has started in a terminal of their own. */
class Program {
  readonly child: ChildProcess;
  text = "";

  constructor(folder: string, ...args: string[]) {
    const env = { ...process.env, OPSTEP_CACHE: CACHE };
    this.child = spawn(python(), args, { cwd: folder, env, stdio: ["ignore", "pipe", "pipe"] });
    const take = (data: Buffer) => {
      this.text += data;
    };
    this.child.stdout?.on("data", take);
    this.child.stderr?.on("data", take);
  }

  async expect(text: RegExp): Promise<RegExpExecArray> {
    await expect.poll(() => this.text, { timeout: 120_000 }).toMatch(text);
    return text.exec(this.text) as RegExpExecArray;
  }

  async expectEnd(): Promise<void> {
    await expect.poll(() => this.child.exitCode, { timeout: 120_000 }).toBe(0);
  }
}

let program: Program | undefined;

test.afterEach(() => {
  program?.child.kill("SIGKILL");
  program = undefined;
});

test("a script in the integrated terminal reads what is typed, in colours, and is debugged", async ({
  workbench,
}) => {
  const { debug } = workbench;
  await debug.configure({ program: "${workspaceFolder}/ask.py", console: "integratedTerminal" });
  await workbench.openFile("net.py");
  await debug.setBreakpoint(STATES);
  await debug.pressF5();
  await expect(debug.terminal()).toContainText("Which seed?", { timeout: 120_000 });
  await debug.typeIntoTerminal("7");
  await debug.expectStoppedAt(STATES);
  await expect(debug.terminal().locator(".xterm-fg-2")).toHaveText("seed 7");
  await workbench.focusEditor();
  await debug.pressF5();
  await debug.expectEnded();
  await expect(debug.terminal()).toContainText("classes: 4");
  await workbench.command("opstep: Get Started (Open Walkthrough)");
  const step = workbench.page.locator(".getting-started-step", { hasText: "PyTorch" });
  await expect(step.locator(".codicon-getting-started-step-checked").first()).toBeVisible();
});

test("what is under the mouse, and at the ends of lines, has a shape and figures", async ({
  workbench,
}) => {
  const { debug } = workbench;
  await workbench.openFile("net.py");
  await debug.setBreakpoint(RESULT);
  await workbench.openFile("train.py");
  await debug.pressF5();
  await expect(workbench.tab("net.py")).toHaveClass(/active/, { timeout: 120_000 });
  await debug.expectStoppedAt(RESULT);
  await expect.poll(() => workbench.text()).toMatch(/words\):\s*words = i64\[8, 12\]\s+mean/);
  await expect.poll(() => workbench.text()).toMatch(/float\(\)\s*mask = f32\[8, 12\]\s+all 1/);
  await expect(await debug.hover("return self.out", "states")).toContainText(
    /f32\[8, 12, 16\]\s+mean \S+\s+std/,
  );
  await expect(await debug.hover("mask = ", "words")).toContainText(/i64\[8, 12\]\s+mean/);
  // What is not finite has its colour here, too.
  await debug.evaluate("states[0, 0, 0] = nan");
  await expect
    .poll(() => endOf(workbench, "states = self.layers"))
    .toMatch(/^states = 1 NaN of 1,536/);
  await debug.stop();
});

test("a script that waits is attached to, stepped, left, and goes on", async ({ workbench }) => {
  const { debug, folder } = workbench;
  program = new Program(folder.path, ..."-m opstep debug --listen 0 --wait train.py".split(" "));
  const [, port] = await program.expect(/listening on \S+:(\d+)/);
  await debug.configure({ request: "attach", port: Number(port) });
  await workbench.openFile("net.py");
  await debug.setBreakpoint(STATES);
  await debug.pressF5();
  await debug.expectStoppedAt(STATES);
  await debug.view();
  await expect(debug.frames()).toHaveText([/^Classifier\.forward/, /^<module>/]);
  await workbench.focusEditor();
  await debug.next();
  await debug.expectStoppedAt(RESULT);
  await debug.pressF5();
  await debug.expectStoppedAt(STATES);
  await expect(debug.frames().first()).toContainText("Classifier.forward backward");
  expect(program.text).not.toContain("step 0");
  await debug.stop();
  await program.expectEnd();
  expect(program.text).toContain("step 2: loss");
});

test("a model that listens is attached to while it runs, and again", async ({ workbench }) => {
  const { debug, folder } = workbench;
  const port = await freePort();
  program = new Program(folder.path, "scaled.py", String(port));
  await program.expect(/turn 2\n/);
  await debug.configure({ request: "attach", port });
  await workbench.openFile("scaled.py");
  await debug.setBreakpoint(SUM);
  for (const round of [1, 2]) {
    await workbench.focusEditor();
    await debug.pressF5();
    await debug.expectStoppedAt(SUM);
    if (round === 1) {
      await expect(await debug.hover("x = pair", "weight")).toContainText("[2.0, 2.0, 2.0, 2.0]");
      // The value of a name stands where it was assigned last.
      await expect.poll(() => workbench.text()).toMatch(/x \+ pair\[1\]\s*x = \[/);
      expect(await workbench.text()).not.toMatch(/(weight|1\))\s*(x|pair) = [[f]/);
    }
    const turns = program.text.split("\n").length;
    await debug.stop();
    await program.expect(new RegExp(`turn ${turns + 3}\n`));
  }
  await folder.write("enough", "");
  await program.expectEnd();
});
