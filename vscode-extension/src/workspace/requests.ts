/** Answers of the language server about workspaces (`opstep/workspace/…`). */

export interface WorkspaceStatus {
  path: string;
  /** `workspace`, or why it is none: absent, foreign, empty, older, newer, locked, damaged, … */
  kind: string;
  message: string;
  hint: string;
  runs?: number;
  last?: string | null;
  running?: number;
  bytes?: number;
  stamp?: string;
}

export interface Run {
  id: number;
  key: string;
  began: string;
  ended: string | null;
  seconds: number | null;
  status: "running" | "done" | "incomplete" | "failed" | "interrupted" | "killed";
  underWay: boolean;
  error: string | null;
  file: string | null;
  place: string | null;
  graph: string;
  device: string;
  streams: number;
  alloc: string;
  fill: string;
  sync: string;
  threads: number | null;
  seed: number;
  steps: number;
  selection: string;
  every: number;
  arena_bytes: number | null;
  param_bytes: number | null;
  trace: string | null;
  version: string;
  host: string;
  pid: number;
  kernels: string | null;
  findings: number;
}

export interface RunDetail extends Run {
  ops: number;
  executions: number | null;
  totalNs: number | null;
  tensorNames: number;
  tensorBytes: number | null;
  checkpoints: number;
  metrics: Metric[];
}

/** The last value of a metric, and some from the first to that. */
export interface Metric {
  name: string;
  step: number;
  value: number | string | null;
  curve: (number | string | null)[];
}

export interface Step {
  step: number;
  ns: number;
  metrics: Record<string, number | string | null>;
  /** Tensors with NaNs or infinities. */
  odd: number;
}

export interface StoredTensor {
  id: number;
  name: string;
  reference: string;
  type: string;
  dtype: string;
  shape: number[];
  kind: string;
  run: string | null;
  step: number | null;
  nbytes: number;
  digest: string;
  saved: string;
}

export interface Finding {
  id: number;
  step: number;
  op: number | null;
  kind: string;
  value: string | null;
  file: string | null;
  line: number | null;
  message: string;
  place: string | null;
}

export interface SlowOp {
  op: number;
  name: string;
  site: string;
  file: string | null;
  line: number | null;
  statement: string | null;
  executions: number;
  total_ns: number;
  mean_ns: number;
  place: string | null;
}

export interface Program {
  text: string;
  file: string | null;
  place: string | null;
  same: boolean;
}
