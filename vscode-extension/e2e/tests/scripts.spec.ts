/** Scripts: in terminals, with processes of their own, and those that one attaches to. */

import { type ChildProcess, spawn } from "node:child_process";
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
  await debug.configure({ program: "${workspaceFolder}/ask.py" });
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

test("a program that waits for debugpy is attached to, stepped, left, and goes on", async ({
  workbench,
}) => {
  const { debug, folder } = workbench;
  const port = await freePort();
  const words = `-m debugpy --listen ${port} --wait-for-client train.py`;
  program = new Program(folder.path, ...words.split(" "));
  await debug.configure({ request: "attach", connect: { host: "127.0.0.1", port } });
  await workbench.openFile("net.py");
  await debug.setBreakpoint(STATES);
  await expect(async () => {
    if (await workbench.page.locator(".debug-toolbar").isHidden()) await debug.pressF5();
    await debug.expectStoppedAt(STATES);
  }).toPass();
  await debug.view();
  await expect(debug.frames()).toHaveText([/^forward/, /^<module>/]);
  await workbench.focusEditor();
  await debug.next();
  await debug.expectStoppedAt(RESULT);
  expect(program.text).not.toContain("step 0");
  await debug.stop();
  await program.expectEnd();
  expect(program.text).toContain("step 2: loss");
});

const CHILDREN = `from multiprocessing import get_context


def square(x):
    return x * x


if __name__ == "__main__":
    with get_context("spawn").Pool(1) as pool:
        print("squares:", pool.map(square, [3, 4]))
`;

test("a module, with its processes: each is a session that stops at breakpoints", async ({
  workbench,
}) => {
  const { debug, folder, page } = workbench;
  await folder.write("squares.py", CHILDREN);
  await debug.configure({ module: "squares", console: "internalConsole" });
  await workbench.openFile("squares.py");
  await debug.setBreakpoint(5);
  await debug.pressF5();
  await debug.expectStoppedAt(5);
  await debug.view();
  await expect(await debug.variable("x", "Locals")).toContainText("3");
  const sessions = page.locator(".debug-call-stack .session");
  await expect(sessions.filter({ hasText: "Subprocess" }).first()).toBeVisible();
  await workbench.focusEditor();
  await debug.filter("squares.py", false);
  await debug.pressF5();
  await expect(page.locator(".repl")).toContainText("squares: [9, 16]");
  await debug.expectEnded();
});

test("the Debug Console opens when something is written, and the keys stay with the editor", async ({
  workbench,
}) => {
  const { debug, folder, page } = workbench;
  const script = "import os, sys\nx = 1\nprint('args:', sys.argv[1:], os.environ['GREETING'])\n";
  await folder.write("quiet.py", script);
  await folder.write("some.env", "export GREETING='good day'  # said first\n");
  await debug.configure({
    program: "${workspaceFolder}/quiet.py",
    args: ["--epochs", "3"],
    envFile: "${workspaceFolder}/some.env",
    console: "internalConsole",
    stopOnEntry: true,
  });
  await workbench.openFile("quiet.py");
  await debug.pressF5();
  await debug.expectStoppedAt(1);
  await expect(page.locator(".repl")).toBeHidden();
  await debug.next();
  await debug.expectStoppedAt(2);
  await debug.next();
  await debug.expectStoppedAt(3);
  await debug.next();
  await expect(page.locator(".repl")).toContainText("args: ['--epochs', '3'] good day");
  await expect(workbench.editor().locator("textarea, .native-edit-context").first()).toBeFocused();
  await debug.expectEnded();
});

test("a script that a signal has ended: which one is said", async ({ workbench }) => {
  const { debug, folder } = workbench;
  await folder.write("dies.py", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n");
  await debug.configure({ program: "${workspaceFolder}/dies.py" });
  await workbench.openFile("dies.py");
  await debug.pressF5();
  await expect(workbench.notification(/signal SIGSEGV/)).toBeVisible();
  await debug.expectEnded();
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
