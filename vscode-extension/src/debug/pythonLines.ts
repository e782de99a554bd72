/** Programs that were imported from PyTorch: which source is shown, and values in Python's lines. */

import * as vscode from "vscode";
import type { Services } from "../services";
import { assignedAbove } from "./assignments";

/** Python's lines in place of the graph's text, or the other way round. */
export async function toggleSourceView(services: Services): Promise<void> {
  const session = services.stop?.session ?? vscode.debug.activeDebugSession;
  await session?.customRequest("opstep/sourceView", {});
}

/** Names are evaluated: in scopes VS Code would find values of the graph that have the same name. */
export function inlinePythonValues(): vscode.Disposable {
  return vscode.languages.registerInlineValuesProvider("python", {
    provideInlineValues(document, _, context) {
      if (vscode.debug.activeDebugSession?.type !== "opstep") {
        return [];
      }
      const lines = document.getText().split(/\r?\n/);
      return assignedAbove(lines, context.stoppedLocation.start.line).map(
        ({ line, column, name }) =>
          new vscode.InlineValueEvaluatableExpression(
            new vscode.Range(line, column, line, column + name.length),
            name,
          ),
      );
    },
  });
}
