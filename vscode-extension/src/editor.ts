/** Lines in the editor. */

import * as vscode from "vscode";
import { isView } from "./room";

const FLASH_MS = 1500;
let flash: { type: vscode.TextEditorDecorationType; timer: NodeJS.Timeout } | undefined;

/** Highlights a line for a moment: the cursor of an editor without focus is easily overlooked. */
function flashLine(editor: vscode.TextEditor, line: number): void {
  endFlash();
  const type = vscode.window.createTextEditorDecorationType({
    isWholeLine: true,
    backgroundColor: new vscode.ThemeColor("editor.rangeHighlightBackground"),
  });
  editor.setDecorations(type, [new vscode.Range(line, 0, line, 0)]);
  flash = { type, timer: setTimeout(endFlash, FLASH_MS) };
}

function endFlash(): void {
  clearTimeout(flash?.timer);
  flash?.type.dispose();
  flash = undefined;
}

/** Shows a line, from 0: in the group that has the file open, else with other texts, never among our views. */
export async function showLine(
  uri: vscode.Uri,
  line: number,
  { column = 0, focus = true } = {},
): Promise<void> {
  const document = await vscode.workspace.openTextDocument(uri);
  const last = Math.max(document.lineCount - 1, 0);
  const at = new vscode.Position(Math.min(Math.max(line, 0), last), column);
  const group =
    groupWith((text) => text.uri.toString() === uri.toString()) ??
    groupWith(() => true) ??
    vscode.window.tabGroups.all.find((each) => !each.tabs.some(isView));
  const editor = await vscode.window.showTextDocument(document, {
    viewColumn: group?.viewColumn ?? vscode.ViewColumn.Beside,
    preserveFocus: !focus,
    selection: new vscode.Range(at, at),
  });
  flashLine(editor, at.line);
  editor.revealRange(
    new vscode.Range(at, at),
    vscode.TextEditorRevealType.InCenterIfOutsideViewport,
  );
}

/** The group with a text that is none of ours. */
function groupWith(matches: (text: vscode.TabInputText) => boolean): vscode.TabGroup | undefined {
  return vscode.window.tabGroups.all.find((group) =>
    group.tabs.some(
      (tab) => tab.input instanceof vscode.TabInputText && !isView(tab) && matches(tab.input),
    ),
  );
}
