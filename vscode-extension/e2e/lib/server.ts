/** One code-server with a home, settings and extensions of its own, and nothing left behind. */

import { type ChildProcess, execFile, spawn } from "node:child_process";
import { createWriteStream, readdirSync, readFileSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { promisify } from "node:util";

import { CACHE } from "./opstep";
import { BUILD, codeServer, python } from "./paths";

const MARK = "OPSTEP_E2E_SERVER";

/** What every workbench starts with: no chat, no welcome, no git, nothing that moves. */
export const SETTINGS: Record<string, unknown> = {
  "chat.disableAIFeatures": true,
  "chat.commandCenter.enabled": false,
  "debug.onTaskErrors": "debugAnyway",
  "debug.showInStatusBar": "always", // where a launch.json that has been read is seen
  // Where the selector of the toolbar finds it; and a stop must not take the focus to the editor's
  // window while a test types elsewhere.
  "debug.toolBarLocation": "floating",
  "editor.acceptSuggestionOnEnter": "off",
  "editor.accessibilitySupport": "off",
  "editor.minimap.enabled": false,
  "editor.parameterHints.enabled": true,
  "explorer.confirmDelete": false,
  "extensions.ignoreRecommendations": true,
  "files.autoSave": "off",
  "git.enabled": false,
  "remote.autoForwardPorts": false,
  "security.workspace.trust.enabled": false,
  "telemetry.telemetryLevel": "off",
  "terminal.integrated.gpuAcceleration": "off",
  "update.mode": "none",
  "window.commandCenter": false,
  "window.confirmBeforeClose": "never",
  "window.title": "${rootName}",
  "workbench.editor.restoreViewState": false,
  "workbench.enableExperiments": false,
  "workbench.layoutControl.enabled": false,
  "workbench.reduceMotion": "on",
  "workbench.secondarySideBar.defaultVisibility": "hidden",
  "workbench.startupEditor": "none",
  "workbench.tips.enabled": false,
  "workbench.welcomePage.walkthroughs.openOnInstall": false,
};

/** The key that hides the sidebar, so that it is seen when RESET begins and when it is through. */
export const HIDE = "Control+Alt+Shift+F11";
/** The key that has a window begin anew: what was done in it is ended, closed and forgotten. */
export const RESET = "Control+Alt+Shift+F12";
/** The key that closes all terminals: beside RESET, for its command never returns where a task has ended in one. */
export const CLOSE_TERMINALS = "Control+Alt+Shift+F10";
const RESETTING = [
  "workbench.view.scm", // first: the sidebar says that the key has arrived
  "workbench.action.closeQuickOpen",
  "workbench.action.focusFirstEditorGroup", // else a view may have the focus, and not the code
  "closeFindWidget", // the next editor would have it
  "workbench.action.debug.stop",
  "workbench.action.files.revert",
  "workbench.action.files.saveAll", // of the other editors; else it is asked what to do with them
  "workbench.action.closeAllEditors",
  "workbench.action.editorLayoutSingle",
  "workbench.action.unlockEditorGroup", // the group that is left may be the one of views
  "workbench.debug.viewlet.action.removeAllBreakpoints",
  "workbench.debug.viewlet.action.removeAllWatchExpressions",
  "workbench.debug.panel.action.clearReplAction",
  "notifications.clearAll",
  "workbench.action.closePanel",
  "workbench.view.explorer", // at last: the explorer says that all is done
];

export class Server {
  private constructor(
    readonly url: string,
    readonly root: string,
    private readonly mark: string,
    private readonly child: ChildProcess,
  ) {}

  /** Starts one with these extensions in it (.vsix files); resolves when it answers. */
  static async start(vsixes: string[], settings: Record<string, unknown> = {}): Promise<Server> {
    const root = await mkdtemp(join(tmpdir(), "opstep-e2e-"));
    const user = join(root, "data/User/settings.json");
    await mkdir(dirname(user), { recursive: true });
    await mkdir(join(root, "home"));
    const chosen = { ...SETTINGS, "opstep.python": python(), ...settings };
    await writeFile(user, JSON.stringify(chosen, null, 2));
    const key = (name: string) => name.replace("Control", "ctrl").toLowerCase();
    const keys = [
      { key: key(HIDE), command: "workbench.action.closeSidebar" },
      { key: key(CLOSE_TERMINALS), command: "workbench.action.terminal.killAll" },
      { key: key(RESET), command: "runCommands", args: { commands: RESETTING } },
    ];
    await writeFile(join(dirname(user), "keybindings.json"), JSON.stringify(keys));
    // What belongs to a machine (opstep.python) is not read from the user's settings in a server.
    const machine = join(root, "data/Machine/settings.json");
    await mkdir(dirname(machine), { recursive: true });
    await writeFile(machine, JSON.stringify({ "opstep.python": chosen["opstep.python"] }));
    await writeFile(join(root, "config.yaml"), "auth: none\ncert: false\n");

    const { node, entry } = codeServer();
    const mark = `${process.pid}-${Math.random().toString(36).slice(2)}`;
    const environment = { ...bare(root, dirname(node)), [MARK]: mark };
    const folders = [
      "--user-data-dir",
      join(root, "data"),
      "--extensions-dir",
      join(root, "extensions"),
    ];
    const common = [entry, "--config", join(root, "config.yaml"), ...folders];
    const install = vsixes.flatMap((vsix) => ["--install-extension", vsix]);
    await promisify(execFile)(node, [...common, ...install], { env: environment });

    const port = await freePort();
    const quiet = [
      "--disable-telemetry",
      "--disable-update-check",
      "--disable-getting-started-override",
    ];
    const where = ["--bind-addr", `127.0.0.1:${port}`, "--auth", "none"];
    // A closed page's extension host must not live on beside the next test's.
    const grace = ["--reconnection-grace-time", "1"];
    const child = spawn(node, [...common, ...where, ...quiet, ...grace], {
      env: environment,
      stdio: ["ignore", "pipe", "pipe"],
      detached: true,
    });
    await mkdir(BUILD, { recursive: true });
    const log = createWriteStream(join(BUILD, "code-server.log"), { flags: "a" });
    child.stdout?.pipe(log);
    child.stderr?.pipe(log);
    const server = new Server(`http://127.0.0.1:${port}`, root, mark, child);
    try {
      await server.answers();
    } catch (error) {
      await server.stop();
      throw error;
    }
    return server;
  }

  private async answers(): Promise<void> {
    const end = Date.now() + 180_000;
    for (;;) {
      if (this.child.exitCode !== null)
        throw new Error("code-server ended; see e2e/build/code-server.log");
      try {
        const answer = await fetch(`${this.url}/healthz`);
        if (answer.ok) return;
      } catch {
        // Not listening yet.
      }
      if (Date.now() > end) throw new Error(`code-server does not answer at ${this.url}`);
      await new Promise((done) => setTimeout(done, 50));
    }
  }

  /** The processes that this server started, however deep, by a variable that all of them inherit. */
  processes(): { pid: number; command: string }[] {
    const wanted = `${MARK}=${this.mark}`;
    const found = [];
    for (const name of readdirSync("/proc")) {
      if (!/^\d+$/.test(name)) continue;
      try {
        if (!readFileSync(`/proc/${name}/environ`, "utf8").split("\0").includes(wanted)) continue;
        const command = readFileSync(`/proc/${name}/cmdline`, "utf8").split("\0").join(" ");
        if (command) found.push({ pid: Number(name), command });
      } catch {
        // It ended meanwhile, or is another user's.
      }
    }
    return found;
  }

  /** From now on gives those that have been started since: other windows have theirs. */
  watch(): () => { pid: number; command: string }[] {
    const before = new Set(this.processes().map(({ pid }) => pid));
    return () => this.processes().filter(({ pid }) => !before.has(pid));
  }

  /** Ends the server and everything that it started. */
  async stop(): Promise<void> {
    for (const signal of ["SIGTERM", "SIGKILL"] as const) {
      const end = Date.now() + 5_000;
      for (let left = this.processes(); left.length && Date.now() < end; left = this.processes()) {
        for (const { pid } of left) {
          try {
            process.kill(pid, signal);
          } catch {
            // Gone by itself.
          }
        }
        await new Promise((done) => setTimeout(done, 100));
      }
    }
    await rm(this.root, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** The environment of a person who has just logged in: nothing of this shell's but the path. */
function bare(root: string, node: string): Record<string, string> {
  return {
    HOME: join(root, "home"),
    LANG: "C.UTF-8",
    PATH: `${node}:/usr/local/bin:/usr/bin:/bin`,
    SHELL: "/bin/bash",
    TERM: "xterm-256color",
    TMPDIR: tmpdir(),
    // Compiled kernels are kept between servers, else each would compile them again.
    OPSTEP_CACHE: CACHE,
  };
}

/** OPSTEP_E2E_PORT and those above it, else one that the system gives. */
export async function freePort(): Promise<number> {
  const first = Number(process.env.OPSTEP_E2E_PORT ?? 0);
  for (let port = first; ; port = port && port + 1) {
    const found = await new Promise<number>((done) => {
      const probe = createServer();
      probe.once("error", () => done(0));
      probe.listen(port, "127.0.0.1", () => {
        const address = probe.address();
        probe.close(() => done(address && typeof address === "object" ? address.port : 0));
      });
    });
    if (found) return found;
  }
}
