/** Which values stand at the ends of which lines. */

import type { FrameValues, Value } from "../../shared/values/messages";
import { notFinite } from "../../shared/values/rows";

const LONGEST = 110; // characters of a line's values; what is not finite comes first in each

export interface LineValues {
  /** From 1. */
  line: number;
  text: string;
  /** Whether a value there is not finite. */
  troubled: boolean;
}

/**
 * Results and inputs in their lines; params only where they are not finite, and states. The line that
 * is next has what its op reads. `textOf`: a line of the file as it is now, where names have to be.
 */
export function lineValues(
  frame: FrameValues,
  stopped: number,
  textOf: (line: number) => string | undefined,
): LineValues[] {
  const byLine = new Map<number, Value[]>();
  for (const value of frame.values) {
    const { line, name, text } = value;
    if (line === undefined || text === undefined || !isShown(value)) {
      continue;
    }
    if (contains(textOf(line), name) && (line !== stopped || frame.hasRun || isGiven(value))) {
      byLine.set(line, [...(byLine.get(line) ?? []), value]);
    }
  }
  const found = [...byLine].map(([line, values]) =>
    written(line, values, values.length > 1 || values.some((v) => v.kind === "input")),
  );
  if (!byLine.has(stopped) && !frame.hasRun) {
    const read = operands(frame.values, textOf(stopped));
    found.push(...(read.length > 0 ? [written(stopped, read, true)] : []));
  }
  return found;
}

/** What an op of Python's `line` has given that a stop is behind; `stopped`: its line in the graph. */
export function resultValues(frame: FrameValues, stopped: number, line: number): LineValues[] {
  const results = frame.values.filter(
    (v) => v.kind === "value" && v.line === stopped && v.text !== undefined,
  );
  return frame.hasRun && results.length > 0 ? [written(line, results, true)] : [];
}

function isShown(value: Value): boolean {
  return value.kind !== "param" || notFinite(value) > 0;
}

/** Not computed by the line in which it stands. */
function isGiven(value: Value): boolean {
  return value.kind !== "value";
}

function written(line: number, values: Value[], named: boolean): LineValues {
  const texts = values.map(({ name, text }) => (named ? `${name} = ${text}` : `${text}`));
  const whole = texts.join(", ");
  return {
    line,
    text: whole.length > LONGEST ? `${whole.slice(0, LONGEST - 1)}…` : whole,
    troubled: values.some((v) => notFinite(v) > 0),
  };
}

/** The values behind the `=` or the keyword of a statement, each once. */
function operands(values: Value[], text: string | undefined): Value[] {
  const behind = text?.replace(/#.*$/, "").replace(/^[^=(]*(?:=|<-)|^\s*(?:return|assert)\b/, "");
  const names = new Set(behind?.match(/[A-Za-z_][\w.]*/g));
  return values.filter((v) => v.text !== undefined && names.has(v.name));
}

/** Whether a name stands in a text as a whole word. */
function contains(text: string | undefined, name: string): boolean {
  let at = text?.indexOf(name) ?? -1;
  while (text !== undefined && at >= 0) {
    if (!/[\w.]$/.test(text.slice(0, at)) && !/\w/.test(text[at + name.length] ?? "")) {
      return true;
    }
    at = text.indexOf(name, at + 1);
  }
  return false;
}
