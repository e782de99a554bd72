/** What is written in a node, and how large that makes it. */

import type { PictureNode, Weight } from "./model";

interface Text {
  /** `c1 = conv2d` */
  title: string;
  /** Weights that are folded into it, with their types. */
  weights: { name: string; type: string; kind: "param" | "state" | "more" }[];
  /** Attributes, literals. */
  detail: string;
  /** Types of the results. */
  types: string;
}

/** The width of a text: bold ones are titles. */
export type Measure = (text: string, bold: boolean) => number;

const LONGEST = { title: 40, detail: 44, types: 44, weight: 30 };
const MOST_WEIGHTS = 6; // rows: those of a batch norm behind a convolution, and a line more
const WEIGHT_GAP = 14; // between a weight's name and its type
/** What a node that computes something has room for in any case: its figures at a stop. */
export const FIGURES = "-0.0123 ± 0.0456";
const LINE = 16;
const PADDING = { x: 14, y: 8 };
const MARKS = 34; // at the right of calls: the buttons

export function textOf(shown: PictureNode, live: Readonly<Record<string, string>> | null): Text {
  const { kind, name, op, args, values } = shown.node;
  const title = {
    input: name,
    param: name,
    state: name,
    op: name ? `${name} = ${op}` : op,
    call: name ? `${name} = ${op}` : op,
    control: name ? `${name} = ${op}` : op,
    update: `${name} ←`,
    assert: `assert ${name}`,
    return: `return ${name}`,
  }[kind];
  const line = live === null ? undefined : values.map((v) => live[v.name]).find(Boolean);
  const types = values.map((v) => v.type ?? "?").join(", ");
  return {
    title: cut(title, LONGEST.title),
    weights: weightRows(shown.weights),
    detail: cut(args.join(", "), LONGEST.detail),
    types: cut(line === undefined ? types : summarize(line), LONGEST.types),
  };
}

function weightRows(weights: readonly Weight[]): Text["weights"] {
  const shown = weights.length > MOST_WEIGHTS ? weights.slice(0, MOST_WEIGHTS - 1) : weights;
  const rows: Text["weights"] = shown.map(({ name, type, kind }) => ({
    name: cutFront(name, LONGEST.weight),
    type: cut(type ?? "?", LONGEST.weight),
    kind,
  }));
  if (shown.length < weights.length) {
    rows.push({ name: `and ${weights.length - shown.length} more`, type: "", kind: "more" });
  }
  return rows;
}

/** The end of a name tells weights of one model apart. */
function cutFront(text: string, most: number): string {
  return text.length > most ? `…${text.slice(1 - most)}` : text;
}

/**
 * The essence of a value's line, as there is room for in a node: `3 NaN` of
 * `f32[8, 128]  3 NaN of 1,024, mean of the rest 0.1  std 1.2  min -3.1  max 4.2`.
 */
export function summarize(text: string): string {
  const figures = text.replace(/^\w+\[[^\]]*\]\s*/, "");
  const mean = /\bmean (?:of the rest )?(\S+)/.exec(figures)?.[1];
  const std = /\bstd (\S+)/.exec(figures)?.[1];
  const bad = [...figures.matchAll(/\b[\d,]+ (?:NaN|[+-]?[Ii]nf)\b/g)].map(([found]) => found);
  if (mean === undefined) {
    return (figures || text).replaceAll(/\s{2,}/g, "  ");
  }
  // What is wrong comes first, and there is no room for more.
  return bad.length > 0
    ? bad.join("  ")
    : std === undefined
      ? shorten(mean)
      : `${shorten(mean)} ± ${shorten(std)}`;
}

/** Three digits, or all of those before the point. */
function shorten(figure: string): string {
  const value = Number(figure);
  if (!Number.isFinite(value) || Math.abs(value) >= 1e6) {
    return figure;
  }
  return String(Math.abs(value) < 100 ? Number(value.toPrecision(3)) : Math.round(value));
}

function cut(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

export function sizeOf(shown: PictureNode, measure: Measure): { width: number; height: number } {
  // The size does not depend on live values: a stop moves nothing.
  const { title, weights, detail, types } = textOf(shown, null);
  const calls = shown.node.calls.length > 0 ? MARKS : 0;
  const lines = 1 + weights.length + Number(detail !== "") + Number(types !== "");
  const width = Math.max(
    measure(title, true) + calls,
    ...weights.map((w) => measure(w.name, false) + measure(w.type, false) + WEIGHT_GAP),
    measure(detail, false),
    measure(types, false),
    types === "" ? 0 : measure(FIGURES, false),
  );
  return {
    width: Math.max(56, Math.ceil(width) + 2 * PADDING.x),
    height: lines * LINE + 2 * PADDING.y,
  };
}

export function statement(shown: PictureNode): string {
  const { kind, name, op, args, values } = shown.node;
  if (kind === "op" || kind === "call" || kind === "control") {
    return `${name ? `${name} = ` : ""}${op}(${[...shown.weights.map((w) => w.name), ...args].join(", ") || "…"})`;
  }
  const type = values[0]?.type;
  return `${kind} ${name}${type ? `: ${type}` : ""}`;
}
