/** The messages between the NaN report's page and the extension host. Lines count from 1. */

interface Tensor {
  name: string;
  type: string;
  memoryReference: string;
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

export interface Link extends Tensor {
  kind: "origin" | "propagated" | "given" | "finite";
  text: string;
  op?: string;
  graph?: string;
  statement?: string;
  source?: { name?: string; path?: string; sourceReference?: number };
  line?: number;
  operands?: (Tensor & { operand: number })[];
  bad?: "nan" | "inf";
  count?: number;
  born?: number;
  rules?: { rule: string; elements: number }[];
  elements?: BadElement[];
}

export interface NanReport {
  found: boolean;
  text: string;
  /** From the tensor that was asked about back to where it began. */
  links: Link[];
}

/** What went wrong in a run that a workspace recorded. */
export interface Finding {
  run: string;
  step: number | null;
  kind: string;
  value: string;
  op: string;
  file: string;
  line: number;
  message: string;
}

/** What the page is sent. */
export type HostMessage =
  | { kind: "report"; report: NanReport; title: string; where: string; current: boolean }
  | { kind: "findings"; findings: Finding[]; title: string }
  | { kind: "stale" }
  | { kind: "error"; text: string };

/** What the page asks for. */
export type PageMessage =
  | { kind: "ready" }
  | { kind: "line"; link: number }
  | { kind: "element"; link: number; operand?: number; place: number[] }
  | { kind: "finding"; finding: number }
  | { kind: "copy" };
