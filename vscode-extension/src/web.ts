/** In a browser without a machine behind it: colours and snippets only. */

import * as vscode from "vscode";
import { placeholders } from "./placeholders";

const TEXT =
  "In the browser, only colours and snippets work. To check, run and debug graphs, open the " +
  "folder in VS Code on a machine with Python: desktop, SSH, a container, or code-server.";
const SHOWN = "opstep.saidWeb";

export function activate(context: vscode.ExtensionContext): void {
  const show = () => vscode.window.showInformationMessage(TEXT);
  context.subscriptions.push(placeholders(context, show));
  if (!context.globalState.get(SHOWN)) {
    void context.globalState.update(SHOWN, true);
    void show();
  }
}
