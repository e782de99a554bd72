/** The view Runs: recorded runs in the activity bar, and the query panel. */

import * as vscode from "vscode";
import type { Services } from "../services";
import { Actions } from "./actions";
import { registerDocuments } from "./documents";
import { Files } from "./files";
import type { Node } from "./nodes";
import { Queries } from "./query";
import { StoredTensorPanels } from "./storedTensors";
import { Tree } from "./tree";

const REDRAWN_MS = 60_000; // "5 min ago" goes on

export function register(services: Services): vscode.Disposable {
  const files = new Files(services);
  const tree = new Tree(services, files);
  const queries = new Queries(services, files);
  const stored = new StoredTensorPanels(services);
  const view = vscode.window.createTreeView<Node>("opstep.workspace", {
    treeDataProvider: tree,
    canSelectMany: true,
    showCollapseAll: true,
  });
  const actions = new Actions(
    services,
    files,
    tree,
    (request) => queries.open(request),
    (path, tensor) => stored.open(path, tensor),
    () => view.selection,
  );
  const clock = setInterval(() => view.visible && tree.refresh(), REDRAWN_MS);
  const seen = () => files.watch(view.visible || queries.isOpen);
  const badge = () => {
    const running = files.all.reduce((sum, status) => sum + (status.running ?? 0), 0);
    view.badge = running ? { value: running, tooltip: `${running} running` } : undefined;
    view.message = undefined;
  };
  void files.find();
  seen();
  return vscode.Disposable.from(
    view,
    actions.register(),
    registerDocuments(services),
    files.onDidChange(badge),
    view.onDidChangeVisibility(() => {
      seen();
      if (view.visible) {
        void files.find();
      }
    }),
    queries.onDidChange(seen),
    queries,
    stored,
    tree,
    files,
    { dispose: () => clearInterval(clock) },
  );
}
