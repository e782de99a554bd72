/** In a browser without a machine behind it: colours and snippets only. */

import * as vscode from "vscode";

export function activate(context: vscode.ExtensionContext): void {
  if (context.globalState.get("opstep.saidWeb")) {
    return;
  }
  void context.globalState.update("opstep.saidWeb", true);
  void vscode.window.showInformationMessage(
    "opstep in the browser: colours and snippets work. To check, run and debug graphs, " +
      "open the folder in VS Code on a machine with Python (desktop, SSH, container, or code-server).",
  );
}
