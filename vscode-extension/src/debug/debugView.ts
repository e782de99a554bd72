/** The debug view where a run stops at its entry: VS Code opens it by itself for breakpoints alone. */

import * as vscode from "vscode";

/**
 * Opened before the stop: a view that is there then opens the first scope of its variables, one that
 * is made later does not.
 */
export function showDebugView(): vscode.Disposable {
  return vscode.debug.registerDebugAdapterTrackerFactory("opstep", {
    createDebugAdapterTracker({ configuration: { request, stopOnEntry, noDebug } }) {
      const opens = vscode.workspace.getConfiguration("debug").get("openDebug");
      if (request === "launch" && stopOnEntry && !noDebug && opens === "openOnDebugBreak") {
        void open();
      }
      return undefined;
    },
  });
}

/** Keys go on to the editor. */
async function open(): Promise<void> {
  await vscode.commands.executeCommand("workbench.view.debug");
  await vscode.commands.executeCommand("workbench.action.focusActiveEditorGroup");
}
