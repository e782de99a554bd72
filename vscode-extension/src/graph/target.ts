/** Which graph a command is about. */

import * as vscode from "vscode";
import { graphInViewOrPicked } from "../inView";

/** A graph of a file, as commands are given it. */
export interface Target {
  uri: string;
  graph?: string;
}

/** What a menu, a code lens or another part gives: a URI or its text, with a graph or without. */
export function targetOf(target: unknown, graph: unknown): Target | undefined {
  const name = typeof graph === "string" ? graph : undefined;
  if (target instanceof vscode.Uri || typeof target === "string") {
    return { uri: target.toString(), graph: name };
  }
  if (typeof target === "object" && target !== null && "uri" in target) {
    const { uri, graph: inside } = target as { uri: unknown; graph?: unknown };
    return { uri: String(uri), graph: typeof inside === "string" ? inside : name };
  }
  const document = vscode.window.activeTextEditor?.document;
  return document?.languageId === "opg" ? { uri: document.uri.toString() } : undefined;
}

export async function inView(): Promise<Target | undefined> {
  const file = await graphInViewOrPicked();
  return file ? { uri: vscode.Uri.file(file).toString() } : undefined;
}
