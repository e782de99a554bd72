/** What is written in a node, and how large that makes it. */

import type { PictureNode } from "./model";

interface Text {
  /** `c1 = conv2d` */
  title: string;
  /** Attributes, literals, folded weights. */
  detail: string;
  /** Types of the results. */
  types: string;
}

/** The width of a text: bold ones are titles. */
export type Measure = (text: string, bold: boolean) => number;

const LONGEST = { title: 40, detail: 44, types: 44 };
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
    detail: cut([...shown.weights, ...args].join(", "), LONGEST.detail),
    types: cut(line === undefined ? types : summarize(line), LONGEST.types),
  };
}

/**
 * The essence of a value's line, as there is room for in a node: `3 NaN  0.1 ± 1.2` of
 * `f32[8, 128]  mean 0.1  std 1.2  [-3.1, 4.2]  3 NaN`.
 */
export function summarize(text: string): string {
  const figures = text.replace(/^\w+\[[^\]]*\]\s*/, "");
  const mean = /\bmean (\S+)/.exec(figures)?.[1];
  const std = /\bstd (\S+)/.exec(figures)?.[1];
  const bad = [...figures.matchAll(/\b[\d,]+ (?:NaN|[+-]?[Ii]nf)\b/g)].map(([found]) => found);
  if (mean === undefined) {
    return (figures || text).replaceAll(/\s{2,}/g, "  ");
  }
  return [...bad, std === undefined ? shorten(mean) : `${shorten(mean)} ± ${shorten(std)}`].join(
    "  ",
  );
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
  const { title, detail, types } = textOf(shown, null);
  const calls = shown.node.calls.length > 0 ? MARKS : 0;
  const lines = 1 + Number(detail !== "") + Number(types !== "");
  const width = Math.max(
    measure(title, true) + calls,
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
    return `${name ? `${name} = ` : ""}${op}(${[...shown.weights, ...args].join(", ") || "…"})`;
  }
  const type = values[0]?.type;
  return `${kind} ${name}${type ? `: ${type}` : ""}`;
}
