/** Every module of the extension, in the order in which they are registered. */

import type * as vscode from "vscode";
import type { Services } from "./services";
import { register as graphView } from "./views/graph";
import * as tensor from "./views/tensor";

export type Register = (services: Services) => vscode.Disposable;

/** Views add a line each. */
export const modules: Record<string, Register> = {
  tensor: tensor.register,
  graph: graphView,
};
