/** The room of our views: one group of editors beside the code, whose tabs they are. */

import * as vscode from "vscode";
import {
  columnFor,
  divided,
  type Group,
  hasColumns,
  type Layout,
  rearranged,
  restored,
  type Shares,
  sharesOf,
} from "../shared/room";

const SPLIT = "opstep.split"; // how a person has divided the window between code and views
const STACKED = "opstep.stacked"; // whether views are below the code as columns were too narrow

/** The scheme of plans: texts that stand among the views. */
export const PLANS = "opstep-plan";

/** Whether a tab is one of ours: the workbench names the views of pages with a prefix. */
export function isView({ input }: vscode.Tab): boolean {
  if (input instanceof vscode.TabInputText) {
    return input.uri.scheme === PLANS;
  }
  return (
    (input instanceof vscode.TabInputWebview || input instanceof vscode.TabInputCustom) &&
    /(^|-)opstep\./.test(input.viewType)
  );
}

let fresh = false; // a group was made for a view whose page has not told its size yet

function groupsNow(): Group[] {
  return vscode.window.tabGroups.all.map(({ tabs }) => ({
    views: tabs.some(isView),
    texts: tabs.some((tab) => tab.input instanceof vscode.TabInputText && !isView(tab)),
    empty: tabs.length === 0,
  }));
}

/** Keeps code and views on their sides when either is closed. */
export function keepSides(): vscode.Disposable {
  let before = groupsNow();
  const changed = async () => {
    const now = groupsNow();
    const act = restored(before, now);
    const { viewColumn } = vscode.window.tabGroups.activeTabGroup;
    if ((now.length === 2 && now[1]?.empty) || (act === "swap" && viewColumn !== 2)) {
      return; // a group is made before what it is made for, and gets the focus at last
    }
    before = now;
    if (act === "unlock") {
      await vscode.commands.executeCommand("workbench.action.unlockEditorGroup");
    } else if (act === "swap") {
      await swap();
    }
  };
  return vscode.Disposable.from(
    vscode.window.tabGroups.onDidChangeTabGroups(changed),
    vscode.window.tabGroups.onDidChangeTabs(changed),
  );
}

/** Moves the second of two groups, which has the focus, in front of the first. */
async function swap(): Promise<void> {
  const { orientation } = await vscode.commands.executeCommand<Layout>("vscode.getEditorLayout");
  const side = orientation === 0 ? "Left" : "Up";
  await vscode.commands.executeCommand(`workbench.action.moveActiveEditorGroup${side}`);
}

function emptyGroups(): vscode.TabGroup[] {
  const { all } = vscode.window.tabGroups;
  return all.length > 1 ? all.filter(({ tabs }) => tabs.length === 0) : [];
}

/** The column for a view that is opened now. */
export function roomColumn(): vscode.ViewColumn {
  const groups = groupsNow();
  const column = columnFor(groups, vscode.window.activeTextEditor?.viewColumn);
  fresh ||= column > groups.length;
  return column;
}

/** Shows a text of ours among the views; where there are none yet, beside code that has the room. */
export async function showText(uri: vscode.Uri): Promise<void> {
  const groups = groupsNow();
  const layout = await vscode.commands.executeCommand<Layout>("vscode.getEditorLayout");
  const column = columnFor(groups, vscode.window.activeTextEditor?.viewColumn);
  const viewColumn = column > groups.length && !hasColumns(layout) ? groups.length : column;
  await vscode.window.showTextDocument(uri, { viewColumn, preview: true });
  if (viewColumn > groups.length) {
    // As the group of a page is when it is made.
    await vscode.commands.executeCommand("workbench.action.lockEditorGroup");
  }
}

/**
 * A view's page is this large: beside a group that was made for it, or where it was just `shown`, the
 * window is divided; else it may be a person who divided it, which is kept.
 */
export async function divide(
  memory: vscode.Memento,
  view: { width: number; height: number; column: number | undefined },
  shown: boolean,
): Promise<void> {
  const groups = vscode.window.tabGroups.all.length;
  const now = await vscode.commands.executeCommand<Layout>("vscode.getEditorLayout");
  const saved = memory.get<Shares>(SPLIT, {});
  const stacked = now.orientation === 1 && memory.get(STACKED, false);
  const at = (view.column ?? 1) - 1;
  const next = fresh
    ? divided(now, view, saved)
    : shown && groupsNow()[1 - at]?.texts
      ? rearranged(now, { ...view, at }, saved, stacked)
      : undefined;
  if (!fresh && !next) {
    const current = sharesOf(now);
    await memory.update(SPLIT, current ? { ...saved, [now.orientation]: current } : saved);
  }
  fresh = false;
  const turned = next !== undefined && next.orientation !== now.orientation;
  await memory.update(STACKED, turned ? next.orientation === 1 : stacked);
  if (next !== undefined && vscode.window.tabGroups.all.length === groups) {
    const empty = emptyGroups();
    await vscode.commands.executeCommand("vscode.setEditorLayout", next);
    // A group that was closed meanwhile was made anew, and would stay empty.
    for (const group of emptyGroups().slice(empty.length)) {
      await vscode.window.tabGroups.close(group);
    }
    for (const editor of vscode.window.visibleTextEditors) {
      editor.revealRange(editor.selection, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    }
  }
}
