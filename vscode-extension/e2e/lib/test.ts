/** What a test of this suite gets: a window of the workbench, and the server of its worker. */

import { appendFile, mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";

import { type Browser, test as base, type TestInfo } from "@playwright/test";

import { Folder } from "./folder";
import { BUILD, packed, vsix } from "./paths";
import { Server } from "./server";
import { Workbench } from "./workbench";

export { expect } from "@playwright/test";

/** What the extension writes before each message where `opstep.debug.traceMessages` is on. */
const MESSAGE = /opstep dap (\{.*\})(?: color:|$)/s;

interface OfTest {
  /** The worker's window, as if it had just been opened: for all tests that do not ask how one begins. */
  workbench: Workbench;
  /** A window of the test's own, which has not opened anything yet. */
  closed: Workbench;
}

interface OfWorker {
  settings: Record<string, unknown>;
  /** Extensions beside ours, as folders of their sources. */
  extensions: string[];
  server: Server;
  /** The window of `workbench`, once a test has asked for it. */
  window: { opened?: Workbench };
}

export const test = base.extend<OfTest, OfWorker>({
  settings: [{}, { option: true, scope: "worker" }],
  extensions: [[], { option: true, scope: "worker" }],

  server: [
    async ({ settings, extensions }, use) => {
      const server = await Server.start([vsix(), ...extensions.map(packed)], {
        "opstep.debug.traceMessages": true,
        ...settings,
      });
      await use(server);
      await server.stop();
    },
    { scope: "worker", timeout: 300_000 },
  ],

  window: [
    // biome-ignore lint/correctness/noEmptyPattern: Playwright reads the pattern
    async ({}, use) => {
      const window: OfWorker["window"] = {};
      await use(window);
      if (window.opened) await close(window.opened);
    },
    { scope: "worker" },
  ],

  closed: async ({ browser, server }, use, info) => {
    const workbench = await make(browser, server);
    await use(workbench);
    await keep(workbench, info);
    await close(workbench);
  },

  workbench: async ({ browser, server, window, viewport }, use, info) => {
    let workbench = window.opened;
    if (workbench) {
      await workbench.reset();
    } else {
      workbench = await make(browser, server);
      window.opened = workbench;
      await workbench.open();
      await workbench.expectWatched();
    }
    if (viewport) await workbench.resize(viewport);
    await use(workbench);
    await keep(workbench, info);
  },
});

async function make(browser: Browser, server: Server): Promise<Workbench> {
  const page = await browser.newPage();
  await page.addInitScript(stopAnimations);
  if (process.env.OPSTEP_E2E_SLOWER) {
    const rate = Number(process.env.OPSTEP_E2E_SLOWER);
    const devtools = await page.context().newCDPSession(page);
    await devtools.send("Emulation.setCPUThrottlingRate", { rate });
  }
  return new Workbench(page, await Folder.make(), server.url);
}

/** Runs in the page: what turns and slides is drawn anew sixty times a second, and says nothing. */
function stopAnimations(): void {
  const style = document.createElement("style");
  style.textContent = "* { animation: none !important; transition: none !important; }";
  document.addEventListener("DOMContentLoaded", () => document.head.append(style));
}

async function close({ page, folder }: Workbench): Promise<void> {
  await page.close();
  await folder.remove();
}

/** Keeps the messages of a test, and of one that has failed everything that was written to the console. */
async function keep(workbench: Workbench, info: TestInfo): Promise<void> {
  const lines = workbench.console.splice(0);
  const messages = lines.flatMap((line) => MESSAGE.exec(line)?.[1] ?? []);
  if (messages.length) {
    await mkdir(join(BUILD, "messages"), { recursive: true });
    const name = info.titlePath.join(" ").replace(/[^\w.]+/g, "-");
    await appendFile(join(BUILD, "messages", `${name}.jsonl`), `${messages.join("\n")}\n`);
  }
  if (info.status !== info.expectedStatus) {
    await writeFile(info.outputPath("console.txt"), lines.join("\n"));
  }
}
