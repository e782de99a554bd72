import type * as vscode from "vscode";
import type { QuietOptions } from "./shell";

/** Where a debug session of ours stands. */
export interface Stop {
  session: vscode.DebugSession;
  threadId: number;
  frameId: number;
  reason: string;
  text: string;
  path: string;
  line: number;
  /** The function, in a session on Python. */
  graph: string;
  /** Whether the session is on Python, and no graph is there. */
  isScript: boolean;
  /** What the calls that lead to the frame are for, the outermost first; see `parseFrame`. */
  calls: string[];
  /** The function of Python that the frame shows in place of its graph, and where. */
  python?: { name: string; path: string; line: number };
}

/** What the modules of the extension share. */
export interface Services {
  readonly context: vscode.ExtensionContext;
  readonly log: vscode.LogOutputChannel;
  /** The present stop; undefined while a run goes on or none is there. */
  readonly stop: Stop | undefined;
  /**
   * Fires at each stop, when another frame is chosen, when values were changed (`invalidated`),
   * and with undefined when it goes on or ends.
   */
  readonly onStop: vscode.Event<Stop | undefined>;
  /** Fulfilled when the language server has started, or could not be. */
  readonly started: Promise<void>;
  /** A request to the language server; rejects with a text for people where none runs. */
  request<T>(method: string, params: unknown, token?: vscode.CancellationToken): Promise<T>;
  notify(method: string, params: unknown): Promise<void>;
  /** Runs `opstep ARGS` quietly. */
  opstep(
    args: string[],
    options?: QuietOptions,
  ): Promise<{ code: number; stdout: string; stderr: string }>;
  /** Runs `opstep ARGS` where the user sees it (a task's terminal). */
  show(
    args: string[],
    options?: { cwd?: string; title?: string; env?: Record<string, string> },
  ): Promise<number | undefined>;
}
