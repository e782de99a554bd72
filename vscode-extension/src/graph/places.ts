/** Lines in the editor. */

import * as vscode from "vscode";

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
  editor.revealRange(
    new vscode.Range(at, at),
    vscode.TextEditorRevealType.InCenterIfOutsideViewport,
  );
}
