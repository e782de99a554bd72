/** Steps of the walkthrough are ticked when they have worked: its completion events are these keys. */

import * as vscode from "vscode";

export type Step = "python" | "torch" | "graph" | "step" | "nan" | "timeline" | "workspace";

const READING_MS = [500, 3000]; // until the page has read which events it waits for
const done = new Set<Step>();

const PAGE = "opstep.opstep#start"; // publisher, extension and the walkthrough

/** Opens the page. */
export async function openWalkthrough(): Promise<void> {
  await vscode.commands.executeCommand("workbench.action.openWalkthrough", PAGE);
}

/** A step has worked. */
export function worked(step: Step): void {
  if (!done.has(step)) {
    done.add(step);
    void tick(step);
  }
}

/** A key that is set before the page is opened ticks nothing: it is set again once that is there. */
export function followWalkthrough(): vscode.Disposable {
  let timers: NodeJS.Timeout[] = [];
  const changed = vscode.window.tabGroups.onDidChangeTabs(({ opened, changed: others }) => {
    if ([...opened, ...others].some((tab) => tab.isActive && tab.input === undefined)) {
      timers.forEach(clearTimeout);
      timers = READING_MS.map((ms) => setTimeout(() => done.forEach(tick), ms));
    }
  });
  return vscode.Disposable.from(changed, { dispose: () => timers.forEach(clearTimeout) });
}

/** The key is true for a moment only, for one that is true at first never ticks its step. */
async function tick(step: Step): Promise<void> {
  const key = `opstep.worked.${step}`;
  await vscode.commands.executeCommand("setContext", key, true);
  await vscode.commands.executeCommand("setContext", key, false);
}
