/** Where NaNs were born: in Problems with a quick fix, and as lines that are coloured in the editor. */

import * as vscode from "vscode";
import type { Link, NanReport } from "../../shared/nan/messages";
import { problemOf } from "../../shared/nan/report";

const SOURCE = "opstep NaN";

/** A mark: its Problem, and which link of the report it is. */
interface Mark {
  link: number;
  uri: vscode.Uri;
  diagnostic: vscode.Diagnostic;
}

export class Marks implements vscode.Disposable, vscode.CodeActionProvider {
  private readonly problems = vscode.languages.createDiagnosticCollection("opstep-nan");
  private readonly lines = vscode.window.createTextEditorDecorationType({
    isWholeLine: true,
    backgroundColor: new vscode.ThemeColor("opstep.nanLineBackground"),
    borderColor: new vscode.ThemeColor("opstep.nanLineBorder"),
    borderStyle: "solid",
    borderWidth: "0 0 0 3px",
    overviewRulerColor: new vscode.ThemeColor("editorOverviewRuler.errorForeground"),
    overviewRulerLane: vscode.OverviewRulerLane.Right,
  });
  private marks: Mark[] = [];
  private readonly disposables = [
    this.problems,
    this.lines,
    vscode.window.onDidChangeVisibleTextEditors(() => this.paint()),
    // Lines move, and what was found held for the text as it was.
    vscode.workspace.onDidChangeTextDocument(({ document, contentChanges }) => {
      if (contentChanges.length > 0 && this.marks.some((m) => same(m.uri, document.uri))) {
        this.set([]);
      }
    }),
    vscode.languages.registerCodeActionsProvider(
      [{ language: "opg" }, { language: "python" }],
      this,
      {
        providedCodeActionKinds: [vscode.CodeActionKind.QuickFix],
      },
    ),
  ];

  dispose(): void {
    vscode.Disposable.from(...this.disposables).dispose();
  }

  /** Marks the origins of a report, in place of those of the last. */
  async show(report: NanReport | undefined): Promise<void> {
    const links = report?.found ? report.links : [];
    const made = await Promise.all(links.map((link, k) => markOf(link, k)));
    const found = made.filter((m) => m !== undefined);
    const lines = new Set<string>();
    this.set(
      found.filter(({ uri, diagnostic: { range } }) => {
        const key = `${uri}:${range.start.line}`;
        return !lines.has(key) && lines.add(key);
      }),
    );
  }

  provideCodeActions(
    document: vscode.TextDocument,
    range: vscode.Range,
  ): vscode.CodeAction[] | undefined {
    return this.marks
      .filter((m) => same(m.uri, document.uri) && m.diagnostic.range.intersection(range))
      .flatMap(({ link, diagnostic }) =>
        [
          ["Debug There", "opstep.debugThere", link] as const,
          ["Show NaN Report", "opstep.showLastNanReport", link] as const,
        ].map(([title, command, argument], k) => {
          const action = new vscode.CodeAction(title, vscode.CodeActionKind.QuickFix);
          action.command = { title, command, arguments: [argument] };
          action.diagnostics = [diagnostic];
          action.isPreferred = k === 0;
          return action;
        }),
      );
  }

  private set(marks: Mark[]): void {
    this.marks = marks;
    this.problems.clear();
    for (const { uri } of marks) {
      const here = marks.filter((m) => same(m.uri, uri));
      this.problems.set(
        uri,
        here.map((m) => m.diagnostic),
      );
    }
    this.paint();
  }

  private paint(): void {
    for (const editor of vscode.window.visibleTextEditors) {
      const here = this.marks.filter((m) => same(m.uri, editor.document.uri));
      editor.setDecorations(
        this.lines,
        here.map((m) => m.diagnostic.range),
      );
    }
  }
}

async function markOf(link: Link, number: number): Promise<Mark | undefined> {
  const { source, line } = link;
  if (link.kind !== "origin" || !source?.path || !line) {
    return undefined;
  }
  try {
    const uri = vscode.Uri.file(source.path);
    const document = await vscode.workspace.openTextDocument(uri);
    const { text, range } = document.lineAt(line - 1);
    const begin = text.length - text.trimStart().length;
    const diagnostic = new vscode.Diagnostic(
      range.with(range.start.translate(0, begin)),
      problemOf(link),
      vscode.DiagnosticSeverity.Warning,
    );
    diagnostic.source = SOURCE;
    diagnostic.relatedInformation = (link.way ?? [])
      .filter((place) => place.path && place.line)
      .map(
        ({ name, op, path, line: at }) =>
          new vscode.DiagnosticRelatedInformation(
            new vscode.Location(vscode.Uri.file(path ?? ""), new vscode.Position((at ?? 1) - 1, 0)),
            `goes on into ${name}, the result of ${op}`,
          ),
      );
    return { link: number, uri, diagnostic };
  } catch {
    return undefined; // The file is not there, or is shorter now.
  }
}

function same(a: vscode.Uri, b: vscode.Uri): boolean {
  return a.toString() === b.toString();
}
