/** The context menu of a variable: stop where it turns NaN, copy its statistics. */

import type { DebugProtocol } from "@vscode/debugprotocol";
import * as vscode from "vscode";
import type { Services, Stop } from "../services";
import { lineAfter } from "./graphs";

/** What VS Code hands to commands of the menu `debug/variables/context`. */
export interface VariableContext {
  variable?: DebugProtocol.Variable;
}

/** The expression that a variable stands for. */
function expressionOf(context: VariableContext | undefined): string | undefined {
  return context?.variable?.evaluateName || context?.variable?.name;
}

/**
 * Sets a breakpoint that can be seen and edited: on the statement behind the one that computes the
 * value, on the condition that it holds a NaN.
 */
export async function breakOnNan(services: Services, context?: VariableContext): Promise<void> {
  const stop = services.stop;
  const name = expressionOf(context) ?? (await promptForValue());
  if (!stop || !name) {
    return;
  }
  const base = /^[A-Za-z_][\w.]*/.exec(name)?.[0] ?? name;
  const document = await vscode.workspace.openTextDocument(stop.path);
  const line = lineAfter(document.getText(), stop.graph, base);
  if (line === undefined) {
    void vscode.window.showInformationMessage(
      `${base} is not computed in ${stop.graph}, or no statement follows it. The “NaN” filter in the Breakpoints view stops at any op that produces one.`,
    );
    return;
  }
  const condition = `nan(${name})`;
  const location = new vscode.Location(document.uri, new vscode.Position(line, 0));
  vscode.debug.addBreakpoints([new vscode.SourceBreakpoint(location, true, condition)]);
  vscode.window.setStatusBarMessage(
    `Will stop after ${base}, at line ${line + 1}, where ${condition}`,
    6000,
  );
}

/** All figures of a value, as lines, to the clipboard. */
export async function copyStatistics(services: Services, context?: VariableContext): Promise<void> {
  const stop = services.stop;
  const expression = expressionOf(context) ?? (await promptForValue());
  if (!stop || !expression) {
    return;
  }
  const result = await statistics(stop, expression);
  const lines = Object.entries(result.statistics)
    .filter(([, value]) => !Array.isArray(value))
    .map(([name, value]) => `${name}\t${value}`);
  await vscode.env.clipboard.writeText([`${expression}\t${result.type}`, ...lines, ""].join("\n"));
  vscode.window.setStatusBarMessage(`Copied the statistics of ${expression}`, 4000);
}

function statistics(
  stop: Stop,
  expression: string,
): Thenable<{ type: string; statistics: Record<string, unknown> }> {
  return stop.session.customRequest("opstep/statistics", { expression, frameId: stop.frameId });
}

/** From the palette there is no variable: the word at the cursor, or what is typed. */
async function promptForValue(): Promise<string | undefined> {
  const editor = vscode.window.activeTextEditor;
  const range = editor?.document.getWordRangeAtPosition(editor.selection.active);
  return vscode.window.showInputBox({
    title: "Which value?",
    value: range ? editor?.document.getText(range) : "",
  });
}
