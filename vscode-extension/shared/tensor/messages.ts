/** The messages between the Tensor view's page and the extension host. */

import type { Axes } from "./axes";
import type { Part } from "./parts";

/** Element types of the language. */
export type DType = "f64" | "f32" | "f16" | "bf16" | "i64" | "i32" | "i16" | "i8" | "u8" | "bool";

export type MapName = "viola" | "diverging" | "grey";
export type ScaleMode = "minmax" | "percentile" | "symmetric" | "fixed" | "log";
export type ScaleOver = "shown" | "whole" | "tile";

export interface ScaleChoice {
  mode: ScaleMode;
  over: ScaleOver;
  /** Of `fixed`. */
  low: number;
  high: number;
}

/** What a tensor is (`opstep/tensorType`). */
export interface TensorType {
  type: string;
  dtype: DType;
  shape: number[];
  unwritten?: string;
  /** Of which expressions are, where that is not the graph's own. */
  language?: "python";
  /** What is not certain of it, of a tensor of the past. */
  note?: string;
}

/** Elements that are not finite, whose places are asked for in a session on Python. */
export type PlacesOf = "nan" | "posinf" | "neginf" | "any";

/** A part that came (`opstep/tensorSlice`), its elements as bytes. */
export interface Slice {
  dtype: DType;
  shape: number[];
  of: number[];
  steps: number[];
  bytes: Uint8Array;
}

/** Figures of a tensor (`opstep/statistics`); what is not known is not there. */
export interface Statistics {
  count: number;
  min?: number | string;
  max?: number | string;
  mean?: number | string;
  std?: number | string;
  l2?: number | string;
  absmax?: number | string;
  nan: number;
  posinf: number;
  neginf: number;
  zero: number;
  subnormal: number;
  unwritten?: number;
  histogram: number[];
  lowestExponent: number;
}

interface Histogram {
  counts: number[];
  edges: number[];
  finite: number;
}

/** Figures at a step, a turn, or (`position`) of a version. */
export interface HistoryEntry {
  step?: number;
  position?: number;
  type: string;
  statistics: Statistics;
}

/** What is compared with: nothing, so many steps (or versions) ago, or what is written. */
export interface Comparison {
  kind: "none" | "step" | "change" | "expression";
  count: number;
  expression: string;
}

/** How a tensor is looked at: what is remembered of each expression. */
export interface ViewState {
  mode: "picture" | "histogram" | "table";
  axes?: Axes;
  firstTile: number;
  scale: ScaleChoice;
  map: MapName;
  comparison: Comparison;
  difference: "absolute" | "relative";
  logCounts: boolean;
  exponents: boolean;
  bins: number;
  statistic: keyof Statistics;
  /** Whether all controls are seen; undefined where the width of the panel says so. */
  controls?: boolean;
}

/** What a panel shows. */
export interface Subject {
  expression: string;
  /** Of a tensor that has no name, which the expression calls `value`; holds for one stop. */
  memoryReference?: string;
  /** What people see instead of `value`. */
  label?: string;
  /** What its shape was said to be, by who opens it. */
  shape?: number[];
  /** An element to begin at. */
  index?: number[];
}

/** Where the frame of a panel stands. */
export interface FrameLocation {
  /** Counts stops and changes: an answer of an earlier one is thrown away. */
  turn: number;
  graph: string;
  file: string;
  line: number;
  pinned: boolean;
}

/** The requests of the page, and what answers each. */
export interface Calls {
  type: { arguments: { expression: string }; answer: TensorType };
  slice: {
    arguments: {
      expression: string;
      maxElements?: number;
      places?: PlacesOf;
      first?: number;
      count?: number;
    };
    answer: Slice;
  };
  statistics: { arguments: { expression: string }; answer: { statistics: Statistics } };
  histogram: {
    arguments: { expression: string; bins: number; low?: number; high?: number };
    answer: Histogram;
  };
  history: { arguments: { name: string; count: number }; answer: { entries: HistoryEntry[] } };
  set: { arguments: { expression: string; value: string }; answer: { value: string } };
  save: { arguments: { name: string; bytes: Uint8Array }; answer: { saved: boolean } };
}

export type Call = keyof Calls;

export type PageMessage =
  | { kind: "ready" }
  | { kind: "call"; id: number; turn: number; name: Call; arguments: unknown }
  | { kind: "view"; expression: string; view: ViewState }
  | { kind: "subject"; expression: string }
  | { kind: "pin"; pinned: boolean }
  | { kind: "reveal" }
  | { kind: "nan" }
  | { kind: "painted"; milliseconds: number };

export type HostMessage =
  | {
      kind: "open";
      subject: Subject;
      view: ViewState | undefined;
      location: FrameLocation;
      /** What was asked for before the page was there: its type, and the first picture's part. */
      type?: TensorType;
      first?: { part: Part; slice: Slice };
      error?: string;
    }
  | { kind: "stop"; location: FrameLocation }
  | { kind: "running" }
  | { kind: "ended" }
  | { kind: "show"; index: number[] }
  | { kind: "answer"; id: number; answer?: unknown; error?: string };
