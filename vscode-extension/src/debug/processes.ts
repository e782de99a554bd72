/** What a launch.json asks of a person for Python: a process, arguments. */

import { execFile } from "node:child_process";
import { promisify } from "node:util";
import * as vscode from "vscode";

interface Process {
  id: string;
  command: string;
}

/** `${command:pickProcess}`: the number of a process, those of Python first. */
export async function pickProcess(): Promise<string | undefined> {
  const columns = ["-A", "-ww", "-o", "pid=", "-o", "args="];
  const { stdout } = await promisify(execFile)("ps", columns, { maxBuffer: 16 << 20 });
  const items = sorted(processesIn(stdout)).map(({ id, command }) => ({
    label: command.length > 120 ? `${command.slice(0, 119)}…` : command,
    description: id,
  }));
  const options = { title: "Which process?", matchOnDescription: true };
  return (await vscode.window.showQuickPick(items, options))?.description;
}

/** `${command:pickArgs}`: words for the shell; those of the last time are proposed. */
export async function pickArgs(memory: vscode.Memento): Promise<string | undefined> {
  const value = memory.get("opstep.args", "");
  const title = "The program's arguments";
  const typed = await vscode.window.showInputBox({ title, value, ignoreFocusOut: true });
  await memory.update("opstep.args", typed ?? value);
  return typed;
}

export function processesIn(lines: string): Process[] {
  return [...lines.matchAll(/^ *(\d+) +(.*\S)/gm)].map(([, id = "", command = ""]) => ({
    id,
    command,
  }));
}

/** Python's first, and the latest of them before. */
export function sorted(found: Process[]): Process[] {
  const rank = ({ command }: Process) => Number(!/^\S*python/i.test(command));
  return found.toSorted((a, b) => rank(a) - rank(b) || Number(b.id) - Number(a.id));
}
