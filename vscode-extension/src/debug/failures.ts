/** The Debug Console where there is something to read: VS Code opens it by itself for the first session alone. */

import * as vscode from "vscode";
import { Ending, hasFailed, signalOf } from "./ending";
import { isPython } from "./launch";

const OPEN = "workbench.panel.repl.view.focus";
/** Of output that is not for people. */
const HIDDEN = "telemetry";

export function showFailures(): vscode.Disposable {
  return vscode.debug.registerDebugAdapterTrackerFactory("opstep", {
    createDebugAdapterTracker({ name, configuration }) {
      return isPython(configuration)
        ? ofPython(name, configuration.opensConsole === "onOutput")
        : ofGraph(configuration.internalConsoleOptions);
    },
  });
}

/** Opens it when a run of a graph has failed. */
function ofGraph(chosen: string | undefined): vscode.DebugAdapterTracker | undefined {
  if ((chosen ?? setting()) === "neverOpen") {
    return undefined;
  }
  const ending = new Ending();
  return {
    onWillReceiveMessage: (message) => ending.sent(message),
    onDidSendMessage: (message) => {
      if (hasFailed(ending.received(message))) {
        void vscode.commands.executeCommand(OPEN);
      }
    },
  };
}

/** Opens it when something is written there; says which signal has ended the program. */
function ofPython(name: string, opensConsole: boolean): vscode.DebugAdapterTracker {
  const ending = new Ending();
  let opens = opensConsole && setting() !== "neverOpen";
  return {
    onWillReceiveMessage: (message) => ending.sent(message),
    onDidSendMessage: (message) => {
      const { event, body } = message;
      if (opens && event === "output" && body?.category !== HIDDEN && body?.output?.trim()) {
        opens = false;
        void vscode.commands.executeCommand(OPEN, { preserveFocus: true });
      }
      const code = ending.received(message);
      const signal = signalOf(code);
      if (signal) {
        void vscode.window.showErrorMessage(
          `${name} ended with exit code ${code}: signal ${signal}, unless it has chosen that code itself.`,
        );
      }
    },
  };
}

function setting(): string | undefined {
  return vscode.workspace.getConfiguration("debug").get("internalConsoleOptions");
}
