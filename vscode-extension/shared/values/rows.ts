/** The rows of the table of values: filtered, sorted, written. */

import { significant } from "../format";
import type { Value } from "./messages";

export const COLUMNS = [
  "name",
  "type",
  "NaN",
  "inf",
  "min",
  "max",
  "mean",
  "memory",
  "line",
] as const;
export type Column = (typeof COLUMNS)[number];

/** Columns that need statistics. */
export const FIGURES: ReadonlySet<Column> = new Set(["NaN", "inf", "min", "max", "mean"]);
/** Columns of numbers, which stand under each other by their decimal points. */
export const NUMBERS: ReadonlySet<Column> = new Set([...FIGURES, "memory", "line"]);

export interface Order {
  column: Column;
  descending: boolean;
}

/** How many elements are NaN or infinite. */
export function notFinite({ statistics: s }: Value): number {
  return s ? s.nan + s.posinf + s.neginf : 0;
}

/** What a column sorts by; undefined where it is not known. */
export function keyOf(value: Value, column: Column): number | string | undefined {
  const { statistics: s } = value;
  switch (column) {
    case "name":
      return value.name;
    case "type":
      return value.type;
    case "memory":
      return value.bytes;
    case "line":
      return value.line;
    case "NaN":
      return s?.nan;
    case "inf":
      return s && s.posinf + s.neginf;
    default:
      return s?.[column] === undefined ? undefined : Number(s[column]);
  }
}

/**
 * Where no column is chosen, what is not finite and then the rest, each in the order of the program;
 * what is not known comes last in any case.
 */
export function sorted(values: readonly Value[], order: Order | undefined): Value[] {
  if (order === undefined) {
    const odd = (value: Value) => notFinite(value) > 0;
    return [...values.filter(odd), ...values.filter((value) => !odd(value))];
  }
  const keyed = values.map((value) => ({ value, key: keyOf(value, order.column) }));
  const sign = order.descending ? -1 : 1;
  keyed.sort((a, b) => {
    if (a.key === undefined || b.key === undefined) {
      return Number(a.key === undefined) - Number(b.key === undefined);
    }
    return typeof a.key === "number" && typeof b.key === "number"
      ? sign * (a.key - b.key)
      : sign * String(a.key).localeCompare(String(b.key), "en", { numeric: true });
  });
  return keyed.map(({ value }) => value);
}

/** Those of which name, kind or type have all words; with `troubled`, only those not finite. */
export function filtered(values: readonly Value[], text: string, troubled: boolean): Value[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return values.filter((value) => {
    const of = `${value.name} ${value.kind} ${value.type}`.toLowerCase();
    return words.every((word) => of.includes(word)) && (!troubled || notFinite(value) > 0);
  });
}

/** A cell's text; "" where nothing is known. */
export function cellText(value: Value, column: Column): string {
  const key = keyOf(value, column);
  if (key === undefined || typeof key === "string") {
    return key ?? "";
  }
  switch (column) {
    case "NaN":
    case "inf":
      return key === 0 ? "" : key.toLocaleString("en-US");
    case "memory":
      return bytes(key);
    case "line":
      return String(key);
    default:
      return significant(key, 4);
  }
}

/** `80 B`, `2.5 MiB` */
export function bytes(count: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let k = 0;
  let left = count;
  while (left >= 1024 && k < units.length - 1) {
    left /= 1024;
    k += 1;
  }
  return `${k === 0 ? left : left.toFixed(1)} ${units[k]}`;
}

/** Whose statistics are taken unasked: what is small, and need not be computed again. */
export function isCheap(value: Value): boolean {
  return !value.dropped && value.bytes <= 1 << 24;
}
