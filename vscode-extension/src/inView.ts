/** The graph that is visible or debugged: what commands act on, whichever tab has the focus. */

import * as vscode from "vscode";
import { pickFile } from "./dialogs";
import type { Services } from "./services";
import { graphInSight } from "./sight";
import { worked } from "./walkthrough";

/** A view of ours that shows the graph of a file. */
interface GraphShown {
  file: string;
  active: boolean;
  visible: boolean;
}

const views = new Set<() => GraphShown | undefined>();
/** Files by when they were last looked at, the latest first. */
let recent: string[] = [];
let stopPath: () => string | undefined = () => undefined;

/** Follows which graphs are looked at. */
export function followSight(services: Services): vscode.Disposable {
  stopPath = () => services.stop?.path;
  const note = (editor: vscode.TextEditor | undefined) => {
    const file = fileOfDocument(editor?.document);
    if (file) {
      worked("graph");
      recent = [file, ...recent.filter((one) => one !== file)];
    }
  };
  note(vscode.window.activeTextEditor);
  return vscode.window.onDidChangeActiveTextEditor(note);
}

/** Declares a view that shows a graph. */
export function showsGraph(view: () => GraphShown | undefined): vscode.Disposable {
  views.add(view);
  return new vscode.Disposable(() => views.delete(view));
}

/** The graph's file; undefined where none is open. */
export function graphInView(): string | undefined {
  const shown = [...views].flatMap((view) => view() ?? []);
  const session = vscode.debug.activeDebugSession;
  const program = (session?.parentSession ?? session)?.configuration.program;
  const inSight = vscode.window.visibleTextEditors.flatMap((e) => fileOfDocument(e.document) ?? []);
  const tabs = vscode.window.tabGroups.all.flatMap((group) =>
    group.tabs.flatMap(({ input }) =>
      input instanceof vscode.TabInputText && input.uri.scheme === "file" ? input.uri.fsPath : [],
    ),
  );
  return graphInSight({
    focused:
      fileOfDocument(vscode.window.activeTextEditor?.document) ?? shown.find((v) => v.active)?.file,
    debugged: [stopPath(), program].find((file) => file?.endsWith(".opg")),
    open: [
      ...byUse(inSight),
      ...shown.flatMap((view) => (view.visible ? view.file : [])),
      ...byUse(tabs),
    ],
  });
}

/** The Python script in the editor in front, if it is a file. */
export function scriptInView(): string | undefined {
  const document = vscode.window.activeTextEditor?.document;
  return document?.languageId === "python" && document.uri.scheme === "file"
    ? document.uri.fsPath
    : undefined;
}

/** The graph's file; where none is open it is picked. */
export async function graphInViewOrPicked(): Promise<string | undefined> {
  return graphInView() ?? (await pickFile("Which graph?", { graphs: ["opg"] }));
}

function fileOfDocument(document: vscode.TextDocument | undefined): string | undefined {
  return document?.languageId === "opg" && document.uri.scheme === "file"
    ? document.uri.fsPath
    : undefined;
}

function byUse(files: string[]): string[] {
  const rank = (file: string) => (recent.includes(file) ? recent.indexOf(file) : recent.length);
  return files.toSorted((a, b) => rank(a) - rank(b));
}
