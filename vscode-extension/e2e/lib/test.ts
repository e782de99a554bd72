/** What a test of this suite gets: a server for its worker, a folder and a workbench for itself. */

import { appendFile, mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";

import { test as base } from "@playwright/test";

import { Folder } from "./folder";
import { BUILD, packed, vsix } from "./paths";
import { Server } from "./server";
import { Workbench } from "./workbench";

export { expect } from "@playwright/test";

/** What the extension writes before each message where `opstep.debug.traceMessages` is on. */
const MESSAGE = /opstep dap (\{.*\})(?: color:|$)/s;

interface OfTest {
  folder: Folder;
  /** Everything that the page and the extension wrote to the console. */
  console: string[];
  /** A workbench on the folder; `closed` has not opened anything yet. */
  workbench: Workbench;
  closed: Workbench;
}

interface OfWorker {
  settings: Record<string, unknown>;
  /** Extensions beside ours, as folders of their sources. */
  extensions: string[];
  server: Server;
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

  // biome-ignore lint/correctness/noEmptyPattern: Playwright reads the pattern
  folder: async ({}, use) => {
    const folder = await Folder.make();
    await use(folder);
    await folder.remove();
  },

  console: async ({ page }, use, info) => {
    const lines: string[] = [];
    page.on("console", (message) => lines.push(message.text()));
    await use(lines);
    const messages = lines.flatMap((line) => MESSAGE.exec(line)?.[1] ?? []);
    if (messages.length) {
      await mkdir(join(BUILD, "messages"), { recursive: true });
      const file = join(
        BUILD,
        "messages",
        `${info.titlePath.join(" ").replace(/[^\w.]+/g, "-")}.jsonl`,
      );
      await appendFile(file, `${messages.join("\n")}\n`);
    }
    if (info.status !== info.expectedStatus) {
      await writeFile(info.outputPath("console.txt"), lines.join("\n"));
    }
  },

  closed: async ({ page, folder, console: _ }, use) => {
    if (process.env.OPSTEP_E2E_SLOWER) {
      const rate = Number(process.env.OPSTEP_E2E_SLOWER);
      const devtools = await page.context().newCDPSession(page);
      await devtools.send("Emulation.setCPUThrottlingRate", { rate });
    }
    await use(new Workbench(page, folder));
  },

  workbench: async ({ closed, server }, use) => {
    await closed.open(server.url);
    await use(closed);
  },
});
