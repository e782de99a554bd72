/** Commands that cannot run here say why, instead of being unknown. */

import * as vscode from "vscode";

interface Contributed {
  contributes?: { commands?: { command: string }[] };
}

/** Stands in for every command of the extension; `act` says why it does not run. */
export function placeholders(
  context: vscode.ExtensionContext,
  explain: () => unknown,
): vscode.Disposable {
  const { contributes } = context.extension.packageJSON as Contributed;
  return vscode.Disposable.from(
    ...(contributes?.commands ?? []).map(({ command }) =>
      vscode.commands.registerCommand(command, explain),
    ),
  );
}
