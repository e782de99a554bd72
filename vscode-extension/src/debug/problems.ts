/** What is wrong with a program that was to be debugged: in Problems, and told with its place. */

import path from "node:path";
import * as vscode from "vscode";
import type { Sizes } from "./prompts";

/** An error of a program as the debugger places it; lines and columns count from 1. */
export interface Problem {
  path: string;
  line: number;
  column: number;
  endLine: number;
  endColumn: number;
  message: string;
}

interface Failure {
  type: string;
  command?: string;
  success?: boolean;
  body?: {
    error?: {
      id: number;
      format: string;
      showUser?: boolean;
      variables?: Record<string, string>;
    };
  };
}

/** Of the language server's errors, which hold for all sizes; and of those of one launch. */
const SOURCE = "opstep";
const LAUNCH = "opstep launch";
/** The debugger's word for what the machine cannot do, such as to hold tensors of these sizes. */
const MACHINE = 1007;
const GO = "Go to Line";
const SIZES = "Change Sizes…";
const LOG = "Show Log";
/** Of the last launch. */
const found = vscode.languages.createDiagnosticCollection("opstep-launch");

export class LaunchProblems implements vscode.DebugAdapterTrackerFactory, vscode.Disposable {
  private readonly edits = vscode.workspace.onDidChangeTextDocument((event) =>
    found.delete(event.document.uri),
  );

  constructor(
    private readonly sizes: Sizes,
    private readonly log: vscode.LogOutputChannel,
  ) {}

  dispose(): void {
    found.clear();
    this.edits.dispose();
  }

  createDebugAdapterTracker(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    found.clear();
    return {
      onDidSendMessage: (message: Failure) => {
        const error = message.body?.error;
        const begins = message.command === "launch" || message.command === "restart";
        if (
          message.type === "response" &&
          begins &&
          !message.success &&
          error?.showUser === false
        ) {
          const problems = JSON.parse(error.variables?.problems ?? "[]");
          void this.failed(session, error.format, problems, error.id === MACHINE);
        }
      },
    };
  }

  /** `tooLarge`: the text is right, but not for this machine. */
  private async failed(
    session: vscode.DebugSession,
    text: string,
    problems: Problem[],
    tooLarge: boolean,
  ) {
    if (problems.length === 0) {
      this.log.error(text);
    }
    const { program, graph, cwd } = session.configuration;
    const file = path.resolve(cwd ?? "", String(program));
    const known = errorsOf(vscode.Uri.file(file)).length > 0;
    // Where the text is right the sizes are at fault: those that were typed are not kept.
    const atFault = problems.length > 0 ? !known : tooLarge;
    const typed = atFault && (await this.sizes.forget(file, String(graph)));
    if (await tellProblems(problems, typed, text)) {
      const { symbols: _, ...config } = session.configuration;
      await vscode.debug.startDebugging(
        session.workspaceFolder,
        config as vscode.DebugConfiguration,
      );
    }
  }
}

/** Whether a file can run at all, as far as the editor knows; says what is wrong with it. */
export function checkProgram(file: string): boolean {
  const uri = vscode.Uri.file(file);
  const open = vscode.workspace.textDocuments.find((d) => d.uri.fsPath === file);
  const error = open && !open.isDirty ? errorsOf(uri)[0] : undefined;
  if (error) {
    void tell(uri, error.range, error.message, errorsOf(uri).length);
  }
  return !error;
}

/**
 * Shows errors with their places, or a `text` that has none; gives whether the `sizes` that were
 * typed are to be given anew.
 */
export async function tellProblems(
  problems: Problem[],
  sizes: boolean,
  text: string,
): Promise<boolean> {
  const [first] = problems;
  if (!first) {
    // A message without a button is cut off behind its first line.
    const other = sizes ? SIZES : LOG;
    const picked = await vscode.window.showErrorMessage(text, other);
    if (picked === LOG) {
      await vscode.commands.executeCommand("opstep.showLog");
    }
    return picked === SIZES;
  }
  show(problems);
  const uri = vscode.Uri.file(first.path);
  return tell(uri, rangeOf(first), first.message, problems.length, sizes);
}

/** In Problems, but for what stands there already. */
function show(problems: Problem[]): void {
  for (const file of new Set(problems.map((p) => p.path))) {
    const uri = vscode.Uri.file(file);
    const lines = new Set(errorsOf(uri).map((d) => d.range.start.line));
    const fresh = problems.filter((p) => p.path === file && !lines.has(p.line - 1));
    found.set(
      uri,
      fresh.map((p) => {
        const made = new vscode.Diagnostic(rangeOf(p), p.message);
        made.source = LAUNCH;
        return made;
      }),
    );
  }
}

/** Says the first error, with its place; gives whether the sizes are to be given anew. */
async function tell(
  uri: vscode.Uri,
  range: vscode.Range,
  message: string,
  count: number,
  sizes = false,
): Promise<boolean> {
  const more = count > 1 ? ` (and ${count - 1} more, see Problems)` : "";
  const [line] = message.split("\n");
  const picked = await vscode.window.showErrorMessage(
    `${path.basename(uri.fsPath)}:${range.start.line + 1}: ${line}${more}`,
    GO,
    ...(sizes ? [SIZES] : []),
  );
  if (picked === GO) {
    await vscode.window.showTextDocument(uri, { selection: range });
  }
  return picked === SIZES;
}

function errorsOf(uri: vscode.Uri): vscode.Diagnostic[] {
  return vscode.languages
    .getDiagnostics(uri)
    .filter((d) => d.severity === vscode.DiagnosticSeverity.Error && d.source === SOURCE);
}

function rangeOf(p: Problem): vscode.Range {
  return new vscode.Range(p.line - 1, p.column - 1, p.endLine - 1, p.endColumn - 1);
}
