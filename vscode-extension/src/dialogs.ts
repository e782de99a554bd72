/** Dialogs that ask for files. */

import * as vscode from "vscode";

/** Extensions by the name of their kind. */
export type Filters = Record<string, string[]>;

export const WORKSPACES: Filters = { Workspaces: ["db", "sqlite"], "All files": ["*"] };

/** Asks where to save a file; proposes a name in `folder`, or in the first folder of the window. */
export function askSavePath(
  name: string,
  options: { title?: string; filters?: Filters; folder?: vscode.Uri } = {},
): Thenable<vscode.Uri | undefined> {
  const { title, filters } = options;
  const folder = options.folder ?? vscode.workspace.workspaceFolders?.[0]?.uri;
  return vscode.window.showSaveDialog({
    title,
    filters,
    ...(folder && { defaultUri: vscode.Uri.joinPath(folder, name) }),
  });
}

/** Asks where to, and writes a file; whether it was written. */
export async function saveFile(
  name: string,
  bytes: Uint8Array,
  filters?: Filters,
): Promise<boolean> {
  const uri = await askSavePath(name, { filters });
  if (uri) {
    await vscode.workspace.fs.writeFile(uri, new Uint8Array(bytes));
  }
  return uri !== undefined;
}

/** Asks for an existing file, anywhere. */
export async function browse(title: string, filters: Filters): Promise<vscode.Uri | undefined> {
  return (await vscode.window.showOpenDialog({ title, filters }))?.[0];
}

/** A file of the window's folders, or one from anywhere; undefined if the user cancels. */
export async function pickFile(title: string, filters: Filters): Promise<string | undefined> {
  const extensions = Object.values(filters).flat();
  const found = await vscode.workspace.findFiles(
    `**/*.{${extensions.join(",")},}`,
    "**/{.venv,venv,node_modules}/**",
    200,
  );
  const elsewhere = { label: "$(folder-opened) Browse…", uri: undefined };
  const files = found
    .sort((a, b) => a.fsPath.localeCompare(b.fsPath))
    .map((uri) => ({ label: vscode.workspace.asRelativePath(uri), uri }));
  const picked =
    found.length > 0
      ? await vscode.window.showQuickPick([...files, elsewhere], { title })
      : elsewhere;
  return picked && (picked.uri ?? (await browse(title, filters)))?.fsPath;
}
