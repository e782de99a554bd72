/** How long a person waits: `make bench-vscode`. Medians and lowest quartiles, beside their bars. */

import { chmod } from "node:fs/promises";
import { join } from "node:path";

import type { Page } from "@playwright/test";

import { ENTROPY } from "../lib/configurations";
import { HERE, python } from "../lib/paths";
import { expect, test } from "../lib/test";

test.setTimeout(600_000);

test.use({
  extensions: [join(HERE, "peer")],
  settings: { "opstep.debug.traceMessages": false }, // as a person has it
});

const ROUNDS = 7;
/** After a stop, until variables, inline values and the lower frames have been fetched, in ms. */
const SETTLED = 1000;
const figures: string[] = [];

function quantile(times: number[], part: number): number {
  return [...times].sort((a, b) => a - b)[Math.floor(times.length * part)];
}

function note(what: string, times: number[], bar?: number): void {
  const [median, low] = [0.5, 0.25].map((part) => quantile(times, part).toFixed(0));
  figures.push(`${what}: ${median} ms (a quarter below ${low})${bar ? `, bar ${bar} ms` : ""}`);
}

test.afterAll(() => {
  for (const figure of figures) console.log(figure);
});

interface Seen {
  /** The first frame in which the line of the stop is another, in ms from the key on. */
  line: number;
  /** The first in which there is a variable of that name, too. */
  value: number;
}

/** From the next key that is pressed on. */
async function armed(page: Page, name = ""): Promise<() => Promise<Seen>> {
  await page.evaluate((name) => {
    const stop = () =>
      document.querySelector(".debug-top-stack-frame-line")?.getBoundingClientRect().top;
    const hasValue = () =>
      [...document.querySelectorAll(".debug-variables .monaco-list-row .name")].some(
        (row) => row.textContent?.replace(/[ =:]/g, "") === name,
      );
    const measured = new Promise<Seen>((resolve) => {
      const begin = () => {
        const began = performance.now();
        const before = stop();
        let line = 0;
        const look = () => {
          const now = stop();
          if (now !== undefined && now !== before) line ||= performance.now() - began;
          if (line && (!name || hasValue())) resolve({ line, value: performance.now() - began });
          else requestAnimationFrame(look);
        };
        look();
      };
      document.addEventListener("keydown", begin, { capture: true, once: true });
    });
    Object.assign(window, { measured });
  }, name);
  return () => page.evaluate(() => (window as unknown as { measured: Promise<Seen> }).measured);
}

test("steps, and F5 to the entry, by turns with a debugger that does nothing", async ({
  workbench,
}) => {
  const { debug, page } = workbench;
  const peer = { type: "peer", name: "peer", program: "${workspaceFolder}/entropy.opg" };
  await debug.configure({ ...ENTROPY, name: "graph", stopOnEntry: true }, peer);
  await workbench.openFile("entropy.opg");
  const taken = () => ({ settled: [], quick: [], line: [], value: [] }) as Record<string, number[]>;
  const sides = [
    { name: "graph", value: "scores", times: taken() },
    { name: "peer", value: "line", times: taken() },
  ];
  for (let round = 0; round < ROUNDS; round++) {
    for (const { name, value, times } of sides) {
      await workbench.focusEditor();
      await workbench.pick(() => workbench.press("Control+p"), `debug ${name}`, name);
      await debug.expectStoppedAt(3);
      if (round === 0 && name === "graph") await debug.ignoreTrouble();
      // The first two when what follows a stop is over, as a person's; the last at once.
      for (const [line, wait] of [
        [4, SETTLED],
        [5, SETTLED],
        [6, 0],
      ]) {
        await page.waitForTimeout(wait);
        const stepped = await armed(page);
        await debug.next();
        times[wait ? "settled" : "quick"].push((await stepped()).line);
        await debug.expectStoppedAt(line);
      }
      await debug.stop();
      await page.waitForTimeout(2 * SETTLED); // a person reads what was shown
      await workbench.focusEditor();
      const started = await armed(page, value);
      await debug.pressF5();
      const seen = await started();
      times.line.push(seen.line);
      times.value.push(seen.value);
      await debug.stop();
    }
  }
  const [ours, bare] = sides.map((side) => side.times);
  const tell = (what: string, of: string, bar?: number) => {
    note(what, ours[of], bar);
    note("  VS Code by itself", bare[of]);
  };
  const step = quantile(bare.settled, 0.5) + 30;
  tell("F5 to stopped at the entry", "line");
  tell("F5 to values in sight", "value", 1000);
  tell("a step, key to line", "settled", Math.round(step));
  tell("a step right behind another", "quick");
});

test("no kernel is compiled yet: F5 to values in sight, and to the cause of a NaN", async ({
  closed: workbench,
}) => {
  const { debug, folder, page } = workbench;
  /** From now on compiled kernels are looked for in a folder that has none. */
  const forget = async (name: string) => {
    const cache = folder.at(`kernels-${name}`);
    await folder.write("python", `#!/bin/sh\nOPSTEP_CACHE=${cache} exec ${python()} "$@"\n`);
    await chmod(folder.at("python"), 0o755);
  };
  await forget("first");
  await folder.settings({ "opstep.python": folder.at("python") });
  await workbench.open();
  await workbench.openFile("entropy.opg");
  const cold: number[] = [];
  const causes: number[] = [];
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
  await debug.configure({ ...ENTROPY, stopOnEntry: true });
  for (let round = 0; round < 3; round++) {
    await forget(`debug-${round}`);
    await workbench.focusEditor();
    const started = await armed(page, "scores");
    await debug.pressF5();
    cold.push((await started()).value);
    await debug.stop();
    await expect(debug.row("scores")).toHaveCount(0);
  }
  note("Hunt NaN to its cause, the first of a window", causes.slice(0, 1), 15_000);
  note("Hunt NaN to its cause, no kernel compiled", causes, 15_000);
  note("F5 to values in sight, no kernel compiled", cold, 4000);
});

/** The time of the last first picture in any view: that of a closed one may still be there. */
async function lastPainted(page: Page): Promise<number> {
  const views = page.locator("iframe.webview");
  const painted = [...Array(await views.count()).keys()].map((k) =>
    views
      .nth(k)
      .contentFrame()
      .frameLocator("#active-frame")
      .locator("body")
      .evaluate(
        () => {
          const [mark] = performance.getEntriesByName("painted");
          return mark ? performance.timeOrigin + mark.startTime : 0;
        },
        undefined,
        { timeout: 500 },
      )
      .catch(() => 0),
  );
  return Math.max(0, ...(await Promise.all(painted)));
}

test("the first picture of f32[64, 256, 56, 56]", async ({ closed: workbench }) => {
  const { debug, folder, page } = workbench;
  await workbench.open();
  await folder.write(
    "large.opg",
    "graph main(x: f32[64, 256, 56, 56]) -> f32[64, 256, 56, 56] {\n  y = relu(x)\n  return y\n}\n",
  );
  await debug.configure({
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
    // A view marks when its first picture is painted; page and test share the machine's clock.
    let painted = 0;
    while (painted < asked) painted = await lastPainted(page);
    times.push(painted - asked);
    // The keys are still in the code: its tab would be closed in place of the view's.
    const tab = workbench.page.locator(".tab").filter({ hasNotText: "large.opg" });
    await tab.locator(".action-label").first().click();
    await expect(tab).toHaveCount(0);
  }
  note("a tensor's first picture, from the key on", times, 300);
  await debug.stop();
});
