/** Every module of the extension, in the order in which they are registered. */

import type * as vscode from "vscode";
import type { Services } from "./services";
import * as graph from "./views/graph";
import * as nan from "./views/nan";
import * as tensor from "./views/tensor";
import * as timeline from "./views/timeline";
import * as workspace from "./views/workspace";

export type Register = (services: Services) => vscode.Disposable;

/** Views add a line each. */
export const modules: Record<string, Register> = {
  tensor: tensor.register,
  nan: nan.register,
  graph: graph.register,
  timeline: timeline.register,
  workspace: workspace.register,
};
