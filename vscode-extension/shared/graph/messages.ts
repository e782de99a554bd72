/** The messages between the Graph view's page and the extension host. Lines count from 0. */

export type NodeKind =
  | "input"
  | "param"
  | "state"
  | "op"
  | "call"
  | "control"
  | "update"
  | "assert"
  | "return";

interface Value {
  name: string;
  type: string | null;
}

/** A node as `opstep/graph` tells it. */
export interface GraphNode {
  id: string;
  kind: NodeKind;
  /** Names of its results, or the tensor that it is about. */
  name: string;
  op: string;
  lines: [number, number];
  column: number;
  /** Literals among the operands, and attributes: `axis=1`. */
  args: string[];
  /** Graphs that it calls, or may call. */
  calls: string[];
  values: Value[];
  problem?: string;
  /** Its file, where a graph has ops of several. */
  uri?: string;
  /** Of a script, which stands: whether it stands at this op, or in this call. */
  now?: boolean;
  /** Likewise: what was born in it. */
  bad?: string;
}

export interface GraphEdge {
  from: string;
  to: string;
  value: string;
  type: string | null;
  /** Which operand it is. */
  place: number;
}

/** The answer to `opstep/graph`. */
export interface GraphData {
  uri: string;
  graph: string;
  version: number | null;
  lines: [number, number];
  inputs: string[];
  nodes: GraphNode[];
  edges: GraphEdge[];
  /** All graphs of the file. */
  graphs: string[];
}

export interface Breakpoint {
  line: number;
  enabled: boolean;
  /** A condition, a hit count or a message. */
  special: boolean;
}

/** A graph on the way to the one that is shown, and what its call is for: that of a loop is for nothing. */
export interface PathEntry {
  graph: string;
  uri: string;
  call?: string;
}

/** Where the debugger stands in the graph that is shown. */
export interface StopState {
  uri: string;
  graph: string;
  line: number;
  reason: string;
  /** What the calls that lead there are for; see `parseFrame`. */
  calls: string[];
  /** What is known of values so far, by name. */
  values: Record<string, string>;
}

/** Which way a NaN went, by names of values and by lines. */
export interface Tainted {
  uri: string;
  lines: Record<number, string>;
}

export type HostMessage =
  | { kind: "graph"; data: GraphData; path: PathEntry[]; line: number | null }
  | { kind: "library"; graphs: GraphData[] }
  | { kind: "expanded"; key: string; data: GraphData }
  | { kind: "failed"; text: string }
  | { kind: "cursor"; uri: string; line: number }
  | { kind: "stop"; stop: StopState | null }
  | { kind: "value"; name: string; text: string }
  | { kind: "breakpoints"; byUri: Record<string, Breakpoint[]> }
  | { kind: "tainted"; tainted: Tainted | null }
  | { kind: "streams"; byLine: Record<number, number> | null; text: string }
  | { kind: "command"; command: "search" | "fit" | "svg" | "png" };

export type PageMessage =
  | { kind: "ready" }
  | { kind: "goto"; uri: string; line: number; column: number; focus: boolean }
  | { kind: "enter"; path: PathEntry[] }
  | { kind: "back"; to: number }
  | { kind: "choose"; graph: string }
  | { kind: "expand"; key: string; graph: string; uri: string }
  | { kind: "breakpoint"; uri: string; line: number; last: number }
  | { kind: "inspect"; name: string }
  | { kind: "tensor"; name: string }
  | { kind: "streams"; on: boolean }
  | { kind: "follow"; on: boolean }
  | { kind: "export"; format: "svg" | "png"; data: string };

/** What the page keeps when its window is reloaded. */
export interface PageState {
  weights?: boolean;
  across?: boolean;
  follow?: boolean;
  uri?: string;
  graph?: string;
}
