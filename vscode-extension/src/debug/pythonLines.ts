/** Programs that were imported from PyTorch: which source is shown, and values in Python's lines. */

import * as vscode from "vscode";
import type { Services } from "../services";
import { assignedAbove, type PlacedValue, valuesByTrouble } from "./assignments";

/** Python's lines in place of the graph's text, or the other way round. */
export async function toggleSourceView(services: Services): Promise<void> {
  const session = services.stop?.session ?? vscode.debug.activeDebugSession;
  await session?.customRequest("opstep/sourceView", {});
}

const LINGER_MS = 400; // between two steps, as in graphs

/**
 * Values at the ends of Python's lines: VS Code writes them, but for those that are not finite, which have
 * a colour of their own. Names are evaluated: in scopes VS Code would find values of the graph that have
 * the same name.
 */
export class PythonLines implements vscode.Disposable, vscode.InlineValuesProvider {
  private readonly troubled = vscode.window.createTextEditorDecorationType({
    rangeBehavior: vscode.DecorationRangeBehavior.ClosedOpen,
    after: { color: new vscode.ThemeColor("opstep.notFiniteForeground"), margin: "0 0 0 3ch" },
  });
  private ending: NodeJS.Timeout | undefined;
  private readonly disposables: vscode.Disposable[];

  constructor(services: Services) {
    this.disposables = [
      this.troubled,
      vscode.languages.registerInlineValuesProvider("python", this),
      services.onStop((stop) => {
        clearTimeout(this.ending);
        if (!stop) {
          this.ending = setTimeout(() => this.draw(undefined, []), LINGER_MS);
        }
      }),
    ];
  }

  dispose(): void {
    clearTimeout(this.ending);
    vscode.Disposable.from(...this.disposables).dispose();
  }

  async provideInlineValues(
    document: vscode.TextDocument,
    _: vscode.Range,
    { frameId, stoppedLocation }: vscode.InlineValueContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineValue[]> {
    const session = vscode.debug.activeDebugSession;
    if (session?.type !== "opstep") {
      return [];
    }
    const lines = document.getText().split(/\r?\n/);
    const names = assignedAbove(lines, stoppedLocation.start.line).filter(
      ({ name }) => name !== "self" && name !== "cls", // in sight in any case, and long
    );
    const answers = names.map(({ name: expression }) =>
      // As in a hover: what is not finite comes with its colour.
      session.customRequest("evaluate", { expression, frameId, context: "hover" }).then(
        ({ result }) => `${expression} = ${result}`,
        () => undefined, // Not a value of the frame: a module, or not assigned on the way here.
      ),
    );
    const texts = await Promise.all(answers);
    if (token.isCancellationRequested) {
      return [];
    }
    const values = names.flatMap((place, k) => (texts[k] ? [{ ...place, text: texts[k] }] : []));
    this.draw(document, valuesByTrouble(values, true));
    return valuesByTrouble(values, false).map(
      ({ line, column, name, text }) =>
        new vscode.InlineValueText(
          new vscode.Range(line, column, line, column + name.length),
          text,
        ),
    );
  }

  private draw(document: vscode.TextDocument | undefined, values: PlacedValue[]): void {
    for (const editor of vscode.window.visibleTextEditors) {
      const here = editor.document === document ? values : [];
      const lines = [...new Set(here.map(({ line }) => line))];
      editor.setDecorations(
        this.troubled,
        lines.map((line) => {
          const { end } = editor.document.lineAt(line).range;
          const texts = here.filter((value) => value.line === line).map(({ text }) => text);
          const contentText = texts.join(", ").replaceAll("  ", "\u00a0\u00a0");
          return { range: new vscode.Range(end, end), renderOptions: { after: { contentText } } };
        }),
      );
    }
  }
}
