/** The messages between the NaN report's page and the extension host. Lines count from 1. */

interface Tensor {
  name: string;
  type: string;
  /** Where its elements can be read: in a run that stands. */
  memoryReference?: string;
  /** Where the frame that asked has a name for it. */
  expression?: string;
}

interface BadOperand {
  name: string;
  operand: number;
  place: number[];
  value: number | string;
}

export interface BadElement {
  place: number[];
  value: number | string;
  rule: string;
  of: BadOperand[];
}

/** A value on the way from where NaNs were born to a result. */
export interface Place {
  name: string;
  op?: string;
  path?: string;
  line?: number;
  through?: Call[];
}

/** Where a graph is called, whose ops are told of. */
export interface Call {
  path: string;
  line: number;
}

export interface Link extends Tensor {
  kind: "origin" | "propagated" | "given" | "finite";
  text: string;
  op?: string;
  graph?: string;
  statement?: string;
  /** The statement, or the line of Python, whose derivative it is part of. */
  backward?: string;
  /** The run stands behind its op. */
  here?: boolean;
  source?: { name?: string; path?: string; sourceReference?: number };
  line?: number;
  /** The calls that lead to its graph, inner ones first. */
  through?: Call[];
  operands?: (Tensor & { operand: number })[];
  bad?: string;
  count?: number;
  /** Of `count`, those that are NaN. */
  nan?: number;
  born?: number;
  /** Of how many elements of the tensor. */
  size?: number;
  /** Of those born here, how many were looked at. */
  explained?: number;
  /** The operands whose infinities made its NaNs. */
  caused?: string[];
  /** `advice`: what a rule means and what helps; empty where its own words are enough. */
  rules?: { rule: string; elements: number; advice?: string }[];
  elements?: BadElement[];
  /** What else is known of it, in words. */
  notes?: string[];
  /** Where they go from there, the result last. */
  way?: Place[];
  /** What was lost before, without a sign: the element and its op. */
  before?: Place & { text: string };
}

export interface NanReport {
  found: boolean;
  text: string;
  /** From the tensor that was asked about back to where it began; of a hunt, each origin. */
  links: Link[];
  /** In one sentence, where it does not follow from the links. */
  summary?: string;
  /** Whether the links are origins of their own, and not a way. */
  separate?: boolean;
}

/** What went wrong in a run that a workspace recorded. */
export interface Finding {
  id: number;
  run: string;
  step: number | null;
  kind: string;
  value: string | null;
  op?: string | number | null;
  file: string | null;
  line: number | null;
  message: string;
  place?: string | null;
}

/**
 * What a report is of: a run that stands (`live`), one that has gone on (`old`), or one that is over (`past`).
 */
export type State = "live" | "old" | "past";

/** What the page is sent. */
export type HostMessage =
  | {
      kind: "report";
      report: NanReport;
      title: string;
      where: string;
      state: State;
      /** Another run has begun since. */
      outdated?: boolean;
    }
  | { kind: "findings"; findings: Finding[]; title: string }
  | { kind: "stale" }
  | { kind: "error"; text: string };

/** What the page asks for. */
export type PageMessage =
  | { kind: "ready" }
  | { kind: "line"; link: number }
  | { kind: "place"; path: string; line: number }
  | { kind: "debug"; link: number }
  | { kind: "element"; link: number; operand?: number; place: number[] }
  | { kind: "finding"; finding: number }
  | { kind: "copy" };
