/** The debug view where a run stops: VS Code opens it by itself for breakpoints alone. */

import * as vscode from "vscode";

/**
 * Opened before VS Code knows of the stop: a view that is there then opens the first scope of its
 * variables, one that is made later does not.
 */
export function showDebugView(): vscode.Disposable {
  return vscode.debug.registerDebugAdapterTrackerFactory("opstep", {
    createDebugAdapterTracker({ configuration: { request, stopOnEntry, noDebug } }) {
      const opens = vscode.workspace.getConfiguration("debug").get("openDebug");
      if (opens !== "openOnDebugBreak" || noDebug) {
        return undefined;
      }
      let opened = request === "launch" && Boolean(stopOnEntry);
      if (opened) {
        void open();
      }
      return {
        onDidSendMessage({ event, body }) {
          // Who steps may look at something else beside; what went wrong is to be seen.
          if (event === "stopped" && (!opened || body?.reason === "exception")) {
            opened = true;
            void open();
          }
        },
      };
    },
  });
}

/** Keys go on to the editor. */
async function open(): Promise<void> {
  await vscode.commands.executeCommand("workbench.view.debug");
  await vscode.commands.executeCommand("workbench.action.focusActiveEditorGroup");
}
