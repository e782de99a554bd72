/** Every module of the extension, in the order in which they are registered. */

import type * as vscode from "vscode";
import type { Services } from "./services";

export type Register = (services: Services) => vscode.Disposable;

/** Views add a line each. */
export const modules: Record<string, Register> = {};
