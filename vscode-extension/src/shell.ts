/** Runs of the command line: quietly, or in a task's terminal. */

import { spawn } from "node:child_process";
import { homedir } from "node:os";
import * as vscode from "vscode";
import type { Python } from "./python";

/** Behind the path of a Python: opstep as it is installed, not what the present folder has. */
export const MODULE = ["-P", "-m", "opstep"];

const LONGEST = 64 << 20;
const PROGRESS = /^compiling kernel .*$/gm;

interface Finished {
  code: number;
  stdout: string;
  stderr: string;
}

export interface QuietOptions {
  cwd?: string;
  /** In place of the command line. */
  module?: string;
  token?: vscode.CancellationToken;
  /** Gets what it is at: `compiling kernel 3: mul`. */
  onProgress?: (text: string) => void;
}

/** Runs `opstep ARGS` and gathers what it writes. Rejects where it cannot be started. */
export async function runOpstep(
  python: Python,
  args: string[],
  options: QuietOptions = {},
): Promise<Finished> {
  const command = await python.need();
  return new Promise((resolve, reject) => {
    const words = options.module ? ["-P", "-m", options.module] : MODULE;
    const child = spawn(command, [...words, ...args], {
      cwd: options.cwd ?? defaultFolder(),
      env: {
        ...process.env,
        PYTHONIOENCODING: "utf-8",
        ...(options.onProgress && { OPSTEP_PROGRESS: "1" }),
      },
      stdio: ["ignore", "pipe", "pipe"],
    });
    const listening = options.token?.onCancellationRequested(() => child.kill());
    const texts = { stdout: "", stderr: "" };
    for (const name of ["stdout", "stderr"] as const) {
      child[name].setEncoding("utf8").on("data", (text: string) => {
        texts[name] += text;
        if (texts[name].length > LONGEST) {
          child.kill();
        }
      });
    }
    child.stderr.on("data", (text: string) => {
      const [last] = text.match(PROGRESS)?.slice(-1) ?? [];
      if (last) {
        options.onProgress?.(last);
      }
    });
    child.on("error", (error) => {
      listening?.dispose();
      reject(new Error(`${command} could not be started: ${error.message}`));
    });
    child.on("close", (code) => {
      listening?.dispose();
      const stderr = texts.stderr.replace(/^compiling kernel .*\n/gm, "");
      resolve({ code: code ?? 130, stdout: texts.stdout, stderr });
    });
  });
}

/** A task that runs `opstep ARGS` in a terminal. */
export function task(
  python: string,
  args: string[],
  options: {
    cwd?: string;
    title?: string;
    definition?: vscode.TaskDefinition;
    env?: Record<string, string>;
  } = {},
): vscode.Task {
  const folder = options.cwd ?? defaultFolder();
  const created = new vscode.Task(
    options.definition ?? { type: "opstep", args },
    vscode.workspace.workspaceFolders?.[0] ?? vscode.TaskScope.Workspace,
    options.title ?? `opstep ${args.join(" ")}`,
    "opstep",
    new vscode.ProcessExecution(python, [...MODULE, ...args], {
      cwd: folder ?? homedir(),
      ...(options.env && { env: options.env }),
    }),
    // What it finds is below the workspace folder; where there is none it could not be resolved.
    vscode.workspace.workspaceFolders ? "$opstep" : [],
  );
  created.presentationOptions = {
    reveal: vscode.TaskRevealKind.Always,
    // One terminal for all of them, unless a run is still going on in it.
    panel: vscode.TaskPanelKind.Shared,
    showReuseMessage: false,
    clear: true,
  };
  return created;
}

/** Runs `opstep ARGS` in a terminal and waits for its end; the exit code, if it has one. */
export async function runInTerminal(
  python: Python,
  args: string[],
  options: { cwd?: string; title?: string; env?: Record<string, string> } = {},
): Promise<number | undefined> {
  const created = task(await python.need(), args, options);
  // It may have ended before it is known which execution it was.
  const ended = new Map<vscode.TaskExecution, number | undefined>();
  const changed = new vscode.EventEmitter<void>();
  const note = (execution: vscode.TaskExecution, code: number | undefined) => {
    if (!ended.has(execution)) {
      ended.set(execution, code);
    }
    changed.fire();
  };
  const listening = vscode.Disposable.from(
    changed,
    vscode.tasks.onDidEndTaskProcess((e) => note(e.execution, e.exitCode)),
    // One whose process could not be started ends without a code.
    vscode.tasks.onDidEndTask((e) => note(e.execution, undefined)),
  );
  try {
    const execution = await vscode.tasks.executeTask(created);
    while (!ended.has(execution)) {
      await new Promise<void>((resolve) => {
        const once = changed.event(() => {
          once.dispose();
          resolve();
        });
      });
    }
    return ended.get(execution);
  } finally {
    listening.dispose();
  }
}

/** Where commands run: the first folder, if one is open. */
function defaultFolder(): string | undefined {
  return vscode.workspace.workspaceFolders?.find((f) => f.uri.scheme === "file")?.uri.fsPath;
}
