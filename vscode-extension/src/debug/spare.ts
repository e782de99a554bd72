/** A debugger that is started before F5 is pressed: what it imports takes half a second. */

import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { statSync } from "node:fs";
import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import type { Python } from "../python";
import { MODULE } from "../shell";

interface Started {
  child: ChildProcessWithoutNullStreams;
  command: string;
  /** Of the command's file: another one in its place has another stamp. */
  stamp: string;
}

/** At most one, while a graph is open. A session takes it, and the next one follows when it ends. */
export class Spare implements vscode.Disposable {
  private started: Started | undefined;
  private disposed = false;
  private readonly disposables: vscode.Disposable[];

  constructor(
    private readonly python: Python,
    /** The editor is ready for graphs: only then is there time for this. */
    private readonly ready: Promise<void>,
    private readonly log: vscode.LogOutputChannel,
  ) {
    const update = () => void this.update();
    this.disposables = [
      python.onDidChange(update),
      vscode.workspace.onDidOpenTextDocument(update),
      vscode.workspace.onDidCloseTextDocument(update),
      vscode.debug.onDidTerminateDebugSession(update),
    ];
    update();
  }

  dispose(): void {
    this.disposed = true;
    this.drop();
    vscode.Disposable.from(...this.disposables).dispose();
  }

  /** The debugger that waits, if this command would start the same. */
  take(command: string): ChildProcessWithoutNullStreams | undefined {
    const { started } = this;
    if (!started || started.command !== command || started.stamp !== stampOf(command)) {
      this.drop();
      return undefined;
    }
    this.started = undefined;
    return started.child;
  }

  private async update(): Promise<void> {
    const wanted = () => !this.disposed && isGraphOpen();
    if (!wanted()) {
      this.drop();
      return;
    }
    await this.ready;
    const command = (await this.python.find())?.path;
    if (this.started && this.started.command !== command) {
      this.drop();
    }
    // On Windows it could not tell whether opstep was upgraded meanwhile.
    if (command && wanted() && !this.started && process.platform !== "win32") {
      this.start(command);
    }
  }

  private start(command: string): void {
    const child = spawn(command, [...MODULE, "dap", "--ahead"]);
    this.started = { child, command, stamp: stampOf(command) };
    const gone = (why: string) => {
      this.log.debug(`a debugger that was started ahead: ${why}`);
      if (this.started?.child === child) {
        this.started = undefined; // the next session starts its own, and says what is wrong
      }
    };
    child.on("error", (error) => gone(messageOf(error)));
    child.on("exit", (code, signal) => gone(`ended with ${code ?? signal}`));
    child.stderr.on("data", (data) => this.log.debug(`debugger: ${data}`));
  }

  private drop(): void {
    this.started?.child.kill();
    this.started = undefined;
  }
}

function isGraphOpen(): boolean {
  return vscode.workspace.textDocuments.some(({ languageId }) => languageId === "opg");
}

function stampOf(file: string): string {
  const found = statSync(file, { throwIfNoEntry: false });
  return found ? `${found.ino} ${found.size} ${found.mtimeMs}` : "";
}
