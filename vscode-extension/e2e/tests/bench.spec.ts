/** How long a person waits: `make bench-vscode`. Medians, beside their bars. */

import { type ChildProcess, spawn } from "node:child_process";
import { chmod } from "node:fs/promises";
import { join } from "node:path";

import type { Page } from "@playwright/test";

import { ENTROPY } from "../lib/configurations";
import { HERE, python } from "../lib/paths";
import { expect, test } from "../lib/test";

test.setTimeout(240_000);

test.use({
  extensions: [join(HERE, "peer")],
  settings: { "opstep.debug.traceMessages": false }, // as a person has it
});

const ROUNDS = 7;
/** After a stop, until variables, inline values and the lower frames have been fetched, in ms. */
const SETTLED = 1000;
const figures: string[] = [];

function median(times: number[]): number {
  return [...times].sort((a, b) => a - b)[Math.floor(times.length / 2)];
}

function note(what: string, times: number[], bar?: number, less = 0): void {
  const told = median(times) - less;
  const beside = less
    ? ` (${median(times).toFixed(0)} less ${less.toFixed(0)} on the wire alone)`
    : "";
  const held = bar === undefined ? "" : `, bar ${bar} ms`;
  figures.push(`${what}: ${told.toFixed(0)} ms${beside}${held}`);
}

test.afterAll(() => {
  for (const figure of figures) console.log(figure);
});

/** From the next key that is pressed to the first frame in which the line of the stop is another. */
async function armed(page: Page): Promise<() => Promise<number>> {
  await page.evaluate(() => {
    const line = () => {
      const mark = document.querySelector(".debug-top-stack-frame-line");
      return mark ? mark.getBoundingClientRect().top : null;
    };
    const measured = new Promise<number>((resolve) => {
      document.addEventListener(
        "keydown",
        () => {
          const began = performance.now();
          const before = line();
          const look = () => {
            const now = line();
            if (now !== null && now !== before) resolve(performance.now() - began);
            else requestAnimationFrame(look);
          };
          look();
        },
        { capture: true, once: true },
      );
    });
    Object.assign(window, { measured });
  });
  return () => page.evaluate(() => (window as unknown as { measured: Promise<number> }).measured);
}

const PEER = { type: "peer", name: "peer", program: "${workspaceFolder}/entropy.opg" };

test("F5 to the entry, and steps", async ({ workbench, folder, page }) => {
  const { debug } = workbench;
  await folder.launch({ ...ENTROPY, stopOnEntry: true }, PEER);
  await workbench.openFile("entropy.opg");
  const taken = { starts: [], settled: [], quick: [], peerSettled: [], peerQuick: [] } as Record<
    "starts" | "settled" | "quick" | "peerSettled" | "peerQuick",
    number[]
  >;
  /** Three steps: the first two when what follows a stop is over, as a person's; the last at once. */
  const steps = async (settled: number[], quick: number[]) => {
    for (const [line, wait] of [
      [4, SETTLED],
      [5, SETTLED],
      [6, 0],
    ]) {
      await page.waitForTimeout(wait);
      const stepped = await armed(page);
      await debug.next();
      (wait ? settled : quick).push(await stepped());
      await debug.expectStoppedAt(line);
    }
    await debug.stop();
  };
  for (let round = 0; round < ROUNDS; round++) {
    await workbench.focusEditor();
    const started = await armed(page);
    await debug.pressF5();
    taken.starts.push(await started());
    await debug.expectStoppedAt(3);
    if (round === 0) await debug.ignoreTrouble();
    await steps(taken.settled, taken.quick);
  }
  for (let round = 0; round < ROUNDS; round++) {
    await workbench.focusEditor();
    await workbench.pick(() => workbench.press("Control+p"), "debug peer", "peer");
    await debug.expectStoppedAt(3);
    await steps(taken.peerSettled, taken.peerQuick);
  }
  const bare = await bareStep(folder.at("entropy.opg"));
  note("F5 to stopped at the entry", taken.starts, 1500);
  note("a step, key to line", taken.settled, 60, bare);
  note("a step in a debugger that does nothing (VS Code by itself)", taken.peerSettled);
  note("a step right behind another", taken.quick, undefined, bare);
  note("the same in a debugger that does nothing", taken.peerQuick);
});

/** The median of a step over the wire: `next` to the answer of the `stackTrace` behind its stop. */
async function bareStep(program: string): Promise<number> {
  const child = spawn(python(), ["-m", "opstep", "dap"], { stdio: ["pipe", "pipe", "ignore"] });
  const wire = new Wire(child);
  await wire.request("initialize", { adapterID: "opstep" });
  const launched = wire.request("launch", { ...ENTROPY, program, stopOnEntry: true });
  await wire.event("initialized");
  const configured = wire.request("configurationDone", {});
  await wire.event("stopped");
  await Promise.all([launched, configured]);
  const times: number[] = [];
  for (let round = 0; round < 3; round++) {
    for (const command of ["next", "next", "next", "stepBack", "stepBack", "stepBack"]) {
      const began = performance.now();
      const stopped = wire.event("stopped");
      await wire.request(command, { threadId: 1 });
      await stopped;
      await wire.request("stackTrace", { threadId: 1, startFrame: 0, levels: 1 });
      if (command === "next") times.push(performance.now() - began);
    }
  }
  child.kill();
  return median(times);
}

/** Just enough of the protocol to step. */
class Wire {
  private seq = 0;
  private text = Buffer.alloc(0);
  private readonly waiting = new Map<string, () => void>();

  constructor(private readonly child: ChildProcess) {
    child.stdout?.on("data", (data: Buffer) => this.take(data));
  }

  request(command: string, args: object): Promise<void> {
    this.seq += 1;
    const seq = this.seq;
    const body = JSON.stringify({ seq, type: "request", command, arguments: args });
    this.child.stdin?.write(`Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
    return this.until(`${seq}`);
  }

  event(name: string): Promise<void> {
    return this.until(name);
  }

  private until(key: string): Promise<void> {
    return new Promise((resolve) => this.waiting.set(key, resolve));
  }

  private take(data: Buffer): void {
    this.text = Buffer.concat([this.text, data]);
    for (;;) {
      const end = this.text.indexOf("\r\n\r\n");
      const length = Number(
        /Content-Length: (\d+)/.exec(this.text.toString("latin1", 0, end))?.[1],
      );
      if (end < 0 || this.text.length < end + 4 + length) return;
      const message = JSON.parse(this.text.toString("utf8", end + 4, end + 4 + length));
      this.text = this.text.subarray(end + 4 + length);
      const key = message.type === "event" ? message.event : String(message.request_seq);
      this.waiting.get(key)?.();
      this.waiting.delete(key);
    }
  }
}

test("no kernel is compiled yet: F5 to values in sight, and to the cause of a NaN", async ({
  closed: workbench,
  server,
  folder,
}) => {
  const { debug } = workbench;
  /** From now on compiled kernels are looked for in a folder that has none. */
  const forget = async (name: string) => {
    const cache = folder.at(`kernels-${name}`);
    await folder.write("python", `#!/bin/sh\nOPSTEP_CACHE=${cache} exec ${python()} "$@"\n`);
    await chmod(folder.at("python"), 0o755);
  };
  await forget("first");
  await folder.settings({ "opstep.python": folder.at("python") });
  await workbench.open(server.url);
  await workbench.openFile("entropy.opg");
  const cold: number[] = [];
  const warm: number[] = [];
  const causes: number[] = [];
  const values = async () => {
    await workbench.focusEditor();
    const began = Date.now();
    await debug.pressF5();
    await debug.row("scores").waitFor();
    const taken = Date.now() - began;
    await debug.stop();
    await expect(debug.row("scores")).toHaveCount(0);
    return taken;
  };
  for (let round = 0; round < 3; round++) {
    await forget(`hunt-${round}`);
    const began = Date.now();
    await workbench
      .editor()
      .locator(".codelens-decoration a", { hasText: "Hunt NaN" })
      .first()
      .click();
    if (round === 0) await workbench.answer("N=4, K=5"); // and is not asked again
    const report = await workbench.webview(".places");
    await report.locator(".why", { hasText: "born in log" }).waitFor();
    causes.push(Date.now() - began);
    await workbench.tab("NaN Report").locator(".action-label").first().click();
  }
  await folder.launch({ ...ENTROPY, stopOnEntry: true });
  for (let round = 0; round < 3; round++) {
    await forget(`debug-${round}`);
    cold.push(await values());
    warm.push(await values());
  }
  note("Hunt NaN to its cause, the first of a window", causes.slice(0, 1), 15_000);
  note("Hunt NaN to its cause, no kernel compiled", causes, 15_000);
  note("F5 to values in sight, no kernel compiled", cold, 4000);
  note("F5 to values in sight", warm, 1000);
});

test("the first picture of f32[64, 256, 56, 56]", async ({ workbench, folder }) => {
  const { debug } = workbench;
  await folder.write(
    "large.opg",
    "graph main(x: f32[64, 256, 56, 56]) -> f32[64, 256, 56, 56] {\n  y = relu(x)\n  return y\n}\n",
  );
  await folder.launch({
    program: "${workspaceFolder}/large.opg",
    inputs: "random",
    stopOnEntry: true,
  });
  await workbench.openFile("large.opg");
  await debug.pressF5();
  await workbench.page.locator(".debug-top-stack-frame-line").waitFor({ timeout: 60_000 });
  const times: number[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    await workbench.command("opstep: Open Tensor…");
    const input = workbench.page.locator(".quick-input-widget input.input");
    await input.fill("x");
    const asked = Date.now();
    await workbench.press("Enter");
    const view = await workbench.webview("canvas");
    const canvas = view.locator("canvas").first();
    // The view marks when its first picture is painted; page and test share the machine's clock.
    let painted = 0;
    while (!painted) {
      painted = await canvas.evaluate(() => {
        const mark = performance.getEntriesByName("painted")[0];
        return mark ? performance.timeOrigin + mark.startTime : 0;
      });
    }
    times.push(painted - asked);
    await workbench.command("View: Close Editor");
  }
  note("a tensor's first picture, from the key on", times, 300);
  await debug.stop();
});
