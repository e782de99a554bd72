/** Going to the line of a program that a row, a finding or an op speaks of. */

import { existsSync } from "node:fs";
import path from "node:path";
import * as vscode from "vscode";
import type { SourceLocation } from "../../shared/query/messages";
import { showLine } from "../editor";
import type { Services } from "../services";

/** Opens the file at the line; says so where the file is gone, and offers the text as it ran. */
export async function goTo(
  services: Services,
  database: string,
  location: SourceLocation,
): Promise<void> {
  let { line } = location;
  let file = findFile(location.file, database);
  let run: string | undefined = location.run === undefined ? undefined : String(location.run);
  if (!file || line === undefined || line === null) {
    run ??= "last";
    const found = await services.request<{ place: string | null; line: number | null }>(
      "opstep/workspace/place",
      {
        path: database,
        run,
        ...(location.op !== undefined && { op: location.op }),
        ...(location.site !== undefined && { site: location.site }),
      },
    );
    file ??= findFile(found.place, database);
    line ??= found.line;
  }
  if (file) {
    await showLine(vscode.Uri.file(file), (line ?? 1) - 1);
    return;
  }
  if (run === undefined) {
    void vscode.window.showWarningMessage(`${location.file ?? "The program"} no longer exists`);
    return;
  }
  // The text is in the workspace, whatever became of the file.
  const program = programUri(database, run, path.basename(location.file ?? "program.opg"));
  await showLine(program, (line ?? 1) - 1);
}

/** A file as it was recorded, where it can be found: relative ones were meant from where it ran. */
function findFile(file: string | null | undefined, database: string): string | undefined {
  if (!file) {
    return undefined;
  }
  const folders = vscode.workspace.workspaceFolders?.map((f) => f.uri.fsPath) ?? [];
  const tried = path.isAbsolute(file)
    ? [file]
    : [path.dirname(database), ...folders].map((folder) => path.resolve(folder, file));
  return tried.find((candidate) => existsSync(candidate));
}

export const SCHEME = "opstep-workspace";

/** The text of a run's program, as it was recorded. */
function programUri(database: string, run: string, name: string): vscode.Uri {
  return documentUri({ what: "program", path: database, run }, name);
}

/** What a virtual document shows. */
export interface VirtualDocument {
  what: "program" | "compare";
  path: string;
  run: string;
  other?: string;
}

export function documentUri(shown: VirtualDocument, name: string): vscode.Uri {
  return vscode.Uri.from({
    scheme: SCHEME,
    path: `/${shown.run}/${name}`,
    query: JSON.stringify(shown),
  });
}
