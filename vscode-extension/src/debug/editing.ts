/** The file changes while it is debugged: reloaded when it is saved, and said when it is gone. */

import path from "node:path";
import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import type { Services } from "../services";

type Choice = "ask" | "always" | "never";

export function registerEditing(services: Services): vscode.Disposable {
  /** Sessions that were told already: of a change, of a deletion. */
  const notified = new Set<string>();
  const once = (session: vscode.DebugSession, what: string) => {
    const key = `${session.id} ${what}`;
    return notified.has(key) ? false : notified.add(key);
  };
  const watcher = vscode.workspace.createFileSystemWatcher("**/*.opg", true, true, false);
  return vscode.Disposable.from(
    watcher,
    watcher.onDidDelete((uri) => {
      const session = sessionOf(uri.fsPath);
      if (session && once(session, "deleted")) {
        void vscode.window.showWarningMessage(
          `${path.basename(uri.fsPath)} was deleted. The debugger continues with the version it read. Restore the file to restart or reload.`,
        );
      }
    }),
    vscode.workspace.onDidChangeTextDocument(({ document }) => {
      const session = document.isDirty ? sessionOf(document.uri.fsPath) : undefined;
      if (session && document.languageId === "opg" && once(session, `edited ${document.version}`)) {
        vscode.window.setStatusBarMessage(
          `$(debug) The debugger runs ${path.basename(document.uri.fsPath)} as last saved; save it to continue with the new text`,
          5000,
        );
      }
    }),
    vscode.workspace.onDidSaveTextDocument(async (document) => {
      if (document.languageId === "opg" && services.stop && sessionOf(document.uri.fsPath)) {
        await offerReload(services, document);
      }
    }),
    vscode.debug.onDidTerminateDebugSession((session) => {
      for (const key of notified) {
        if (key.startsWith(session.id)) {
          notified.delete(key);
        }
      }
    }),
    vscode.commands.registerCommand("opstep.reload", () => reload(services)),
  );
}

/** The session that runs a file. */
function sessionOf(file: string): vscode.DebugSession | undefined {
  const session = vscode.debug.activeDebugSession;
  if (session?.type !== "opstep") {
    return undefined;
  }
  const { program, cwd } = session.configuration;
  const runs = typeof program === "string" ? path.resolve(cwd ?? "", program) : undefined;
  return runs === undefined || runs === file ? session : undefined;
}

async function offerReload(services: Services, document: vscode.TextDocument): Promise<void> {
  const settings = vscode.workspace.getConfiguration("opstep");
  let choice = settings.get<Choice>("reloadOnSave", "ask");
  if (choice === "ask") {
    const picked = await vscode.window.showInformationMessage(
      `Continue with the new version of ${path.basename(document.uri.fsPath)}? Only what depends on the change is recomputed.`,
      "Reload",
      "Always",
      "Never",
    );
    if (picked === "Always" || picked === "Never") {
      await settings.update(
        "reloadOnSave",
        picked.toLowerCase(),
        vscode.ConfigurationTarget.Global,
      );
    }
    choice = picked === "Reload" || picked === "Always" ? "always" : "never";
  }
  if (choice === "always" && services.stop) {
    await reload(services);
  }
}

/** Reads the file again; what is wrong with it is said, and nothing has changed then. */
async function reload(services: Services): Promise<void> {
  const stop = services.stop;
  if (!stop) {
    void vscode.window.showInformationMessage("There is nothing to reload: no run is stopped.");
    return;
  }
  try {
    const { kept, of, lost } = await stop.session.customRequest("opstep/reload");
    vscode.window.setStatusBarMessage(`$(refresh) Reloaded: kept ${kept} of ${of} values`, 6000);
    if (lost?.length) {
      void vscode.window.showWarningMessage(
        `Reloaded. Values you had set are computed by the program again (${lost.join(", ")}).`,
      );
    }
  } catch (error) {
    const text = messageOf(error);
    void vscode.window.showErrorMessage(`Not reloaded; the old version is still running: ${text}`);
  }
}
