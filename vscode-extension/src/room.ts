/** The room of our views: one group of editors beside the code, whose tabs they are. */

import * as vscode from "vscode";
import { columnFor, divided, type Layout, type Shares, sharesOf } from "../shared/room";

const SPLIT = "opstep.split"; // how a person has divided the window between code and views

/** Whether a tab is one of ours: the workbench names the views of pages with a prefix. */
export function isView({ input }: vscode.Tab): boolean {
  return (
    (input instanceof vscode.TabInputWebview || input instanceof vscode.TabInputCustom) &&
    /(^|-)opstep\./.test(input.viewType)
  );
}

let fresh = false; // a group was made for a view whose page has not told its size yet

/** The column for a view that is opened now. */
export function roomColumn(): vscode.ViewColumn {
  const groups = vscode.window.tabGroups.all.map(({ tabs }) => ({
    views: tabs.some(isView),
    texts: tabs.some(({ input }) => input instanceof vscode.TabInputText),
    empty: tabs.length === 0,
  }));
  const column = columnFor(groups, vscode.window.activeTextEditor?.viewColumn);
  fresh ||= column > groups.length;
  return column;
}

/**
 * A view's page is this large: beside a group that was made for it, the window is `divided`; else it
 * may be a person who divided it, which is kept.
 */
export async function divide(
  memory: vscode.Memento,
  view: { width: number; height: number },
): Promise<void> {
  const now = await vscode.commands.executeCommand<Layout>("vscode.getEditorLayout");
  const saved = memory.get<Shares>(SPLIT, {});
  if (!fresh) {
    const current = sharesOf(now);
    await memory.update(SPLIT, current ? { ...saved, [now.orientation]: current } : saved);
    return;
  }
  fresh = false;
  const next = divided(now, view, saved);
  if (next !== undefined) {
    await vscode.commands.executeCommand("vscode.setEditorLayout", next);
    for (const editor of vscode.window.visibleTextEditors) {
      editor.revealRange(editor.selection, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    }
  }
}
