/** Fields, counts and times as people read them. */

import { counted, significant } from "../../shared/format";
import type { Cell } from "../../shared/query/messages";

interface FormattedCell {
  text: string;
  /** number, text, null, bytes: how it looks, and on which side it stands. */
  kind: "number" | "text" | "null" | "bytes";
  /** The text goes on beyond what was sent. */
  cut: boolean;
}

const NS = /_ns$/;

/** Whether a column holds times in ns, which are easier to read in ms. */
export function isNs(column: string): boolean {
  return NS.test(column);
}

/** A field as the table shows it. */
export function formatCell(cell: Cell | undefined, ms = false): FormattedCell {
  if (cell === undefined) {
    return { text: "", kind: "text", cut: false };
  }
  if (cell === null) {
    return { text: "NULL", kind: "null", cut: false };
  }
  if (typeof cell === "number") {
    return { text: ms ? milliseconds(cell) : figure(cell), kind: "number", cut: false };
  }
  if (typeof cell === "string") {
    return { text: oneLine(cell), kind: "text", cut: false };
  }
  if ("int" in cell) {
    return { text: cell.int, kind: "number", cut: false };
  }
  if ("float" in cell) {
    return { text: cell.float, kind: "number", cut: false };
  }
  if ("bytes" in cell) {
    return { text: counted(cell.bytes, "byte"), kind: "bytes", cut: false };
  }
  return { text: `${oneLine(cell.text)}…`, kind: "text", cut: true };
}

/** A number with nine digits at most, which tell any two f32 apart. */
export function figure(value: number): string {
  if (Number.isInteger(value) && Math.abs(value) < 1e15) {
    return String(value);
  }
  return significant(value, 9);
}

/** Times in ns as ms: to the microsecond, and short ones to three digits, or to the nanosecond. */
export function milliseconds(ns: number): string {
  const ms = ns / 1e6;
  const digits = ms === 0 ? 3 : Math.min(6, Math.max(3, 2 - Math.floor(Math.log10(Math.abs(ms)))));
  return ms.toFixed(digits);
}

function oneLine(text: string): string {
  return text.replace(/\r?\n/g, " ⏎ ").replace(/\t/g, " ");
}
