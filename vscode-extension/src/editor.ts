/** Lines in the editor. */

import * as vscode from "vscode";

const FLASH_MS = 1500;
let flash: { type: vscode.TextEditorDecorationType; timer: NodeJS.Timeout } | undefined;

/** Marks a line for a moment: the cursor of an editor without focus is easily overlooked. */
function mark(editor: vscode.TextEditor, line: number): void {
  unmark();
  const type = vscode.window.createTextEditorDecorationType({
    isWholeLine: true,
    backgroundColor: new vscode.ThemeColor("editor.rangeHighlightBackground"),
  });
  editor.setDecorations(type, [new vscode.Range(line, 0, line, 0)]);
  flash = { type, timer: setTimeout(unmark, FLASH_MS) };
}

function unmark(): void {
  clearTimeout(flash?.timer);
  flash?.type.dispose();
  flash = undefined;
}

/** Shows a line; in the editor that has the file already, where there is one. */
export async function showLine(
  uri: vscode.Uri,
  line: number,
  column: number,
  focus: boolean,
): Promise<void> {
  const document = await vscode.workspace.openTextDocument(uri);
  const at = new vscode.Position(Math.min(line, Math.max(document.lineCount - 1, 0)), column);
  const tabs = vscode.window.tabGroups.all.filter((group) =>
    group.tabs.some(
      (tab) =>
        tab.input instanceof vscode.TabInputText && tab.input.uri.toString() === uri.toString(),
    ),
  );
  const editor = await vscode.window.showTextDocument(document, {
    viewColumn: tabs[0]?.viewColumn ?? vscode.ViewColumn.One,
    preserveFocus: !focus,
    selection: new vscode.Range(at, at),
  });
  mark(editor, at.line);
  editor.revealRange(
    new vscode.Range(at, at),
    vscode.TextEditorRevealType.InCenterIfOutsideViewport,
  );
}
