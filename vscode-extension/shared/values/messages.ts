/** What the debugger tells of a frame's values (`opstep/values`), and what the table's page says. */

export interface Figures {
  nan: number;
  posinf: number;
  neginf: number;
  unwritten?: number;
  min?: number | string;
  max?: number | string;
  mean?: number | string;
  std?: number | string;
}

export interface Value {
  name: string;
  kind: "input" | "value" | "param" | "state";
  type: string;
  bytes: number;
  /** In the graph's text; none where it was not written there. */
  line?: number;
  /** Where it is shown in Python, of a program that was imported. */
  python?: { source?: { path?: string }; line: number };
  /** What gives it in an expression, where that is not its name. */
  expression?: string;
  /** Its memory was given up: it would be computed again. */
  dropped?: boolean;
  /** A line of figures, or its few elements; with the statistics, where they are known. */
  text?: string;
  statistics?: Figures;
}

export interface FrameValues {
  graph: string;
  source: { path?: string };
  /** Whether the op that the frame shows is behind it. */
  hasRun: boolean;
  /** How many there are, if more than those that are told. */
  total: number;
  values: Value[];
}

export type HostMessage =
  | {
      kind: "values";
      /** Counts the stops: answers to another one are dropped. */
      turn: number;
      graph: string;
      total: number;
      values: Value[];
    }
  | { kind: "figures"; turn: number; values: Value[] }
  | { kind: "state"; text: string };

export type PageMessage =
  | { kind: "ready" }
  | { kind: "want"; turn: number; names: string[] }
  | { kind: "line"; name: string; focus: boolean }
  | { kind: "tensor"; name: string };
