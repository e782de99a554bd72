/** Commands of lenses that stay what they are for as long as the extension runs. */

import * as vscode from "vscode";

/**
 * VS Code numbers a command that has arguments, and drops the number when lenses are made anew; the
 * old ones may be in sight for longer, and a click on them does nothing. One without arguments has a
 * name alone.
 */
export class LensCommands implements vscode.Disposable {
  private readonly known = new Map<string, vscode.Disposable>();

  bound(lens: vscode.CodeLens): vscode.CodeLens {
    const { command } = lens;
    if (!command?.arguments?.length) {
      return lens;
    }
    const { command: name, arguments: given } = command;
    const id = `opstep.lens:${name}:${JSON.stringify(given)}`;
    if (!this.known.has(id)) {
      const run = () => vscode.commands.executeCommand(name, ...given);
      this.known.set(id, vscode.commands.registerCommand(id, run));
    }
    lens.command = { title: command.title, tooltip: command.tooltip, command: id };
    return lens;
  }

  dispose(): void {
    for (const command of this.known.values()) {
      command.dispose();
    }
  }
}
