/** Texts out of a workspace as documents that cannot be edited: programs as they ran, comparisons. */

import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import type { Services } from "../services";
import { documentUri, goTo, SCHEME, type VirtualDocument } from "./locations";
import type { Program } from "./requests";

const PLACE = /([^\s:"'()]+\.opg):(\d+)/g;
const FOLLOW = "opstep.workspace.follow";

export function registerDocuments(services: Services): vscode.Disposable {
  const provider: vscode.TextDocumentContentProvider = {
    provideTextDocumentContent: (uri, token) => contentOf(services, documentOf(uri), token),
  };
  const links: vscode.DocumentLinkProvider = {
    provideDocumentLinks: (document) => linksOf(document),
  };
  return vscode.Disposable.from(
    vscode.workspace.registerTextDocumentContentProvider(SCHEME, provider),
    vscode.languages.registerDocumentLinkProvider({ scheme: SCHEME, language: "plaintext" }, links),
    vscode.commands.registerCommand(
      FOLLOW,
      (path: string, run: string, file: string, line: number) =>
        goTo(services, path, { file, line, run }),
    ),
  );
}

/** Opens a document, in a tab that the next one takes. */
export async function openDocument(shown: VirtualDocument, name: string): Promise<void> {
  await vscode.window.showTextDocument(documentUri(shown, name), { preview: true });
}

/** The program as it ran beside the file as it is. */
export async function diffProgram(services: Services, path: string, run: string): Promise<void> {
  const program = await services.request<Program>("opstep/workspace/program", { path, run });
  const name = program.file?.split(/[\\/]/).at(-1) ?? "program.opg";
  if (!program.place) {
    void vscode.window.showWarningMessage(
      `${program.file ?? "The program file"} does not exist: showing only the version that ran.`,
    );
    await openDocument({ what: "program", path, run }, name);
    return;
  }
  if (program.same) {
    void vscode.window.showInformationMessage(`${name} is unchanged since ${run}.`);
    return;
  }
  await vscode.commands.executeCommand(
    "vscode.diff",
    documentUri({ what: "program", path, run }, name),
    vscode.Uri.file(program.place),
    `${name} (${run} ↔ now)`,
  );
}

function documentOf(uri: vscode.Uri): VirtualDocument {
  return JSON.parse(uri.query) as VirtualDocument;
}

async function contentOf(
  services: Services,
  shown: VirtualDocument,
  token: vscode.CancellationToken,
): Promise<string> {
  const { what, path, run } = shown;
  try {
    switch (what) {
      case "program":
        return (await services.request<Program>("opstep/workspace/program", { path, run }, token))
          .text;
      default: {
        const result = await services.opstep(
          ["ws", path, "compare", "--", run, shown.other ?? "last"],
          {
            token,
          },
        );
        return result.code > 1 ? result.stderr || result.stdout : result.stdout;
      }
    }
  } catch (error) {
    return `${messageOf(error)}\n`;
  }
}

function linksOf(document: vscode.TextDocument): vscode.DocumentLink[] {
  const shown = documentOf(document.uri);
  return [...document.getText().matchAll(PLACE)].map((match) => {
    const range = new vscode.Range(
      document.positionAt(match.index),
      document.positionAt(match.index + match[0].length),
    );
    const args = encodeURIComponent(
      JSON.stringify([shown.path, shown.run, match[1], Number(match[2])]),
    );
    const link = new vscode.DocumentLink(range, vscode.Uri.parse(`command:${FOLLOW}?${args}`));
    link.tooltip = "Go to the line";
    return link;
  });
}
