/** Values of the present stop at the ends of the lines that compute them, and for hovers; in Python the op that has run. */

import * as vscode from "vscode";
import type { FrameValues } from "../../shared/values/messages";
import type { Services, Stop } from "../services";
import { valuesOf } from "../values/requests";
import { type LineValues, lineValues, resultValues } from "./lineValues";

const MOST_VALUES = 500;
/** Between two steps values stay where they are: lines that flash are not read. */
const LINGER_MS = 400;
const NO_BREAK_SPACE = "\u00a0"; // several spaces are one in a decoration
/** A stop that is left sooner is not looked at: who holds F10 down is not to wait for figures. */
const SETTLE_MS = 60;

const colour = (name: string) => new vscode.ThemeColor(`opstep.${name}`);

interface Shown {
  path: string;
  frame: FrameValues;
  /** The line of the stop; 0 where it was left. */
  line: number;
  python: Stop["python"];
}

/** Shows the values of the chosen frame at each stop, and takes them away when it goes on. */
export class Live implements vscode.Disposable {
  private shown: Shown | undefined;
  private ending: NodeJS.Timeout | undefined;
  /** The file whose values the language server has, for its hovers. */
  private told: string | undefined;
  private readonly value = decoration("valueForeground");
  private readonly troubled = decoration("notFiniteForeground");
  private readonly hasRun = vscode.window.createTextEditorDecorationType({
    isWholeLine: true,
    backgroundColor: colour("hasRunBackground"),
    borderColor: colour("hasRunBorder"),
    borderStyle: "solid",
    borderWidth: "1px 0 1px 4px",
    overviewRulerColor: colour("hasRunBorder"),
  });
  private readonly disposables: vscode.Disposable[];

  constructor(private readonly services: Services) {
    this.disposables = [
      this.value,
      this.troubled,
      this.hasRun,
      services.onStop((stop) => void this.stopped(stop)),
      vscode.window.onDidChangeVisibleTextEditors(() => this.draw()),
      vscode.workspace.onDidChangeConfiguration(
        (event) => event.affectsConfiguration("debug.inlineValues") && this.draw(),
      ),
    ];
  }

  dispose(): void {
    clearTimeout(this.ending);
    vscode.Disposable.from(...this.disposables).dispose();
  }

  private async stopped(stop: Stop | undefined): Promise<void> {
    const { services } = this;
    clearTimeout(this.ending);
    if (stop?.isScript || (!stop?.python && !stop?.path.endsWith(".opg"))) {
      this.leave();
      this.ending = setTimeout(() => void this.clear(), LINGER_MS);
      return;
    }
    if (this.shown?.line !== stop.line) {
      this.leave();
    }
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    if (services.stop !== stop) {
      return;
    }
    try {
      const frame = await valuesOf(stop, { most: MOST_VALUES });
      if (services.stop === stop) {
        this.shown = { path: stop.path, frame, line: stop.line, python: stop.python };
        this.draw();
        if (stop.path.endsWith(".opg")) {
          await this.tell(stop, frame);
        }
      }
    } catch (error) {
      services.log.debug(`no live values: ${error}`);
    }
  }

  /** What is said of the line of a stop does not stay. */
  private leave(): void {
    if (this.shown?.frame.hasRun) {
      this.shown = { ...this.shown, line: 0, frame: { ...this.shown.frame, hasRun: false } };
      this.draw();
    }
  }

  private async clear(): Promise<void> {
    this.shown = undefined;
    this.draw();
    if (this.told !== undefined) {
      const uri = this.told;
      this.told = undefined;
      await this.services.notify("opstep/live", { uri, values: [] });
    }
  }

  /** Hovers of the language server show what a value is now. */
  private async tell(stop: Stop, frame: FrameValues): Promise<void> {
    const uri = vscode.Uri.file(stop.path).toString();
    if (this.told !== undefined && this.told !== uri) {
      await this.services.notify("opstep/live", { uri: this.told, values: [] });
    }
    this.told = uri;
    const values = frame.values.flatMap(({ name, kind, text }) =>
      text === undefined
        ? []
        : [{ name, graph: kind === "param" || kind === "state" ? null : frame.graph, text }],
    );
    await this.services.notify("opstep/live", { uri, values });
  }

  private draw(): void {
    const off = vscode.workspace.getConfiguration("debug").get("inlineValues") === "off";
    for (const editor of vscode.window.visibleTextEditors) {
      const { document } = editor;
      if (!["opg", "python"].includes(document.languageId)) {
        continue;
      }
      const found = this.shown && seenIn(document, this.shown);
      const lines = found && !off ? found.lines : [];
      const marked =
        found && this.shown?.frame.hasRun ? [behindOp(document, found.line, lines)] : [];
      const ends = lines.filter(({ line }) => marked.length === 0 || line !== found?.line);
      const at = (troubled: boolean) =>
        ends.filter((l) => l.troubled === troubled).map((l) => endOf(document, l));
      editor.setDecorations(this.value, at(false));
      editor.setDecorations(this.troubled, at(true));
      editor.setDecorations(this.hasRun, marked);
    }
  }
}

function decoration(name: string): vscode.TextEditorDecorationType {
  return vscode.window.createTextEditorDecorationType({
    rangeBehavior: vscode.DecorationRangeBehavior.ClosedOpen,
    after: { color: colour(name), margin: "0 0 0 3ch" },
  });
}

/** The line of the stop in a file, and the values there: of Python's lines, only what the op has given. */
function seenIn(
  document: vscode.TextDocument,
  { frame, line, path, python }: Shown,
): { line: number; lines: LineValues[] } | undefined {
  if (python?.path === document.uri.fsPath) {
    return { line: python.line, lines: resultValues(frame, line, python.line) };
  }
  if (path !== document.uri.fsPath) {
    return undefined;
  }
  const textOf = (k: number) =>
    k >= 1 && k <= document.lineCount ? document.lineAt(k - 1).text : undefined;
  return { line, lines: lineValues(frame, line, textOf) };
}

function endOf(document: vscode.TextDocument, { line, text }: LineValues) {
  const { end } = document.lineAt(line - 1).range;
  const after = { contentText: text.replaceAll("  ", NO_BREAK_SPACE.repeat(2)) };
  return { range: new vscode.Range(end, end), renderOptions: { after } };
}

/** The line of an op that has run, unlike one that is next. */
function behindOp(document: vscode.TextDocument, line: number, lines: LineValues[]) {
  const found = lines.find((l) => l.line === line);
  const { range } = document.lineAt(Math.min(Math.max(line, 1), document.lineCount) - 1);
  const text = ["✓ has run", found?.text].filter(Boolean).join("  ");
  const contentText = text.replaceAll("  ", NO_BREAK_SPACE.repeat(2));
  const color = colour(found?.troubled ? "notFiniteForeground" : "valueForeground");
  const after = { contentText, color, margin: "0 0 0 3ch" };
  return { range, renderOptions: { after } };
}
