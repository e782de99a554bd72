/** The Debug Console where a session has failed: VS Code opens it by itself for the first session alone. */

import * as vscode from "vscode";
import { Ending } from "./ending";

export function showFailures(): vscode.Disposable {
  return vscode.debug.registerDebugAdapterTrackerFactory("opstep", {
    createDebugAdapterTracker({ configuration: { program, internalConsoleOptions } }) {
      const settings = vscode.workspace.getConfiguration("debug");
      const opens = internalConsoleOptions ?? settings.get("internalConsoleOptions");
      if (opens === "neverOpen") {
        return undefined;
      }
      const ending = new Ending(program);
      return {
        onWillReceiveMessage: (message) => ending.sent(message),
        onDidSendMessage: (message) => {
          if (ending.received(message)) {
            void vscode.commands.executeCommand("workbench.panel.repl.view.focus");
          }
        },
      };
    },
  });
}
