/** The messages between the query panel's page and the extension host, and the answers of the language server. */

/** A field of an answer; what JSON has no word for is an object with one key that names it. */
export type Cell =
  | null
  | number
  | string
  | { int: string }
  | { float: string }
  | { bytes: number }
  | { text: string; length: number };

export interface Problem {
  kind: string;
  message: string;
  hint: string;
  start?: number;
  end?: number;
}

/** How far the answer to a question is. */
export interface Answer {
  columns: string[];
  kinds: string[];
  count: number;
  /** There are rows beyond those that are kept. */
  more: boolean;
  done: boolean;
  seconds: number;
  problem: Problem | null;
  rows: Cell[][];
}

interface Column {
  name: string;
  type: string;
  what: string;
}

export interface Table {
  name: string;
  kind: "table" | "view";
  what: string;
  columns: Column[];
}

interface Example {
  title: string;
  what: string;
  sql: string;
}

export interface Schema {
  tables: Table[];
  names: { op: string[]; value: string[]; graph: string[]; metric: string[] };
  runs: string[];
  /** What each run is called in a list. */
  titles: Record<string, string>;
  /** Of the tables that plots read, those that hold anything. */
  recorded: string[];
  examples: Example[];
}

export interface PlotLine {
  label: string;
  site: string;
  run: string;
  points: number;
  xs: number[];
  ys: (number | null)[];
}

export interface Plot {
  axis: string;
  unit: "seconds" | "elements" | "";
  lines: PlotLine[];
  /** How many lines there are; those that reach farthest are sent. */
  all: number;
  points: number;
  /** Where tensors had NaNs or infinities. */
  odd: { x: number; count: number; labels: string[] }[];
  seconds: number;
  problem?: Problem;
}

export type Mode = "sql" | "plot";

export interface WorkspaceEntry {
  path: string;
  label: string;
}

/** Where in a program a row, a finding or an op belongs, as far as it is known. */
export interface SourceLocation {
  file?: string | null;
  line?: number | null;
  run?: number | string;
  op?: number;
  site?: string;
}

export type PageMessage =
  | { type: "ready" }
  | { type: "request"; id: number; method: string; params: Record<string, unknown> }
  | { type: "goto"; path: string; location: SourceLocation }
  | { type: "copy"; text: string; done: string }
  | { type: "export"; path: string; sql: string; format: "csv" | "json" }
  | { type: "exportPlot"; path: string; what: string }
  | { type: "save"; name: string; data: string }
  | { type: "remember"; mode: Mode; text: string }
  | { type: "choose" }
  | { type: "chosen"; path: string };

export type HostMessage =
  | { type: "response"; id: number; result?: unknown; error?: string }
  | {
      type: "open";
      path: string;
      workspaces: WorkspaceEntry[];
      history: { mode: Mode; text: string }[];
      mode?: Mode;
      text?: string;
    }
  | { type: "workspaces"; workspaces: WorkspaceEntry[] }
  | { type: "changed"; path: string };

/** What the panel keeps while it is hidden or its window is reloaded. */
export interface PageState {
  path: string;
  mode: Mode;
  sql: string;
  plot: string;
}
