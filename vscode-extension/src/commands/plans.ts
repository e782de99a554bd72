/** Plans as documents that cannot be edited: tabs among the views, whose lines lead to the program's. */

import * as vscode from "vscode";
import { PLANS, showText } from "../room";
import type { Services } from "../services";

/** What a plan is of; it is told again where the window was reloaded. */
interface Planned {
  file: string;
  args: string[];
}

export class Plans implements vscode.TextDocumentContentProvider, vscode.DocumentLinkProvider {
  private readonly texts = new Map<string, string>();
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.changed.event;

  constructor(private readonly services: Services) {}

  register(): vscode.Disposable {
    return vscode.Disposable.from(
      this.changed,
      vscode.workspace.registerTextDocumentContentProvider(PLANS, this),
      vscode.languages.registerDocumentLinkProvider({ scheme: PLANS }, this),
    );
  }

  /** Shows what `opstep ARGS` tells of a graph's plan. */
  async show(file: string, graph: string, args: string[]): Promise<void> {
    const planned: Planned = { file, args };
    const uri = vscode.Uri.file(file).with({
      scheme: PLANS,
      path: `${vscode.Uri.file(file).path}/Plan: ${graph}`,
      query: JSON.stringify(planned),
    });
    this.texts.set(uri.toString(), await this.read(planned));
    this.changed.fire(uri);
    await showText(uri);
  }

  private async read({ args }: Planned): Promise<string> {
    const { stdout, stderr } = await vscode.window.withProgress(
      { location: vscode.ProgressLocation.Window, title: "opstep: planning" },
      () => this.services.opstep(args),
    );
    if (!stdout) {
      throw new Error(stderr.trim() || "there is no plan");
    }
    return stdout + stderr; // of ranks that do not match, the message
  }

  async provideTextDocumentContent(uri: vscode.Uri): Promise<string> {
    return this.texts.get(uri.toString()) ?? (await this.read(plannedOf(uri)));
  }

  /** `line 12` of a frame or a step. */
  provideDocumentLinks(document: vscode.TextDocument): vscode.DocumentLink[] {
    const { file } = plannedOf(document.uri);
    return [...document.getText().matchAll(/\bline (\d+)$/gm)].map((match) => {
      const range = new vscode.Range(
        document.positionAt(match.index),
        document.positionAt(match.index + match[0].length),
      );
      return new vscode.DocumentLink(
        range,
        vscode.Uri.file(file).with({ fragment: `L${match[1]}` }),
      );
    });
  }
}

function plannedOf(uri: vscode.Uri): Planned {
  return JSON.parse(uri.query) as Planned;
}
