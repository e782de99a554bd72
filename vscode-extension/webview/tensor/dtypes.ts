/** Element types of the language: how their bytes are read, and how one element is written exactly. */

import { significant } from "../../shared/format";
import type { DType } from "../../shared/tensor/messages";

const SIZES: Record<DType, number> = {
  f64: 8,
  f32: 4,
  f16: 2,
  bf16: 2,
  i64: 8,
  i32: 4,
  i16: 2,
  i8: 1,
  u8: 1,
  bool: 1,
};

/** Bytes of an element. */
export function itemSize(dtype: DType): number {
  return SIZES[dtype];
}

export function isFloat(dtype: DType): boolean {
  return dtype === "f64" || dtype === "f32" || dtype === "f16" || dtype === "bf16";
}

/** The number whose bits those of an f16 are. */
export function halfToNumber(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) {
    return sign * fraction * 2 ** -24;
  }
  if (exponent === 31) {
    return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  }
  return sign * (1024 + fraction) * 2 ** (exponent - 25);
}

const asBits = new Uint32Array(1);
const asFloat = new Float32Array(asBits.buffer);

/** Likewise of a bf16: the upper half of an f32. */
export function bfloatToNumber(bits: number): number {
  asBits[0] = bits << 16;
  return asFloat[0] as number;
}

/** The shortest decimal that is nearer to an element than to any other one of its type. */
export function shortest(value: number, dtype: DType, bits = 0): string {
  if (Number.isNaN(value)) {
    return "nan";
  }
  if (!Number.isFinite(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  if (value === 0) {
    return Object.is(value, -0) ? "-0.0" : "0.0";
  }
  return withPoint(dtype === "f64" ? String(value) : digits(value, dtype, bits));
}

function digits(value: number, dtype: DType, bits: number): string {
  for (let precision = 1; precision < 9; precision++) {
    const text = value.toPrecision(precision);
    const read = Number(text);
    const same = dtype === "f32" ? Math.fround(read) === value : isNearest(read, bits, dtype);
    if (same) {
      return String(read);
    }
  }
  return significant(value, 9);
}

/** Whether a two-byte element is the one that a number would be rounded to. */
function isNearest(read: number, bits: number, dtype: DType): boolean {
  const decode = dtype === "f16" ? halfToNumber : bfloatToNumber;
  const magnitude = bits & 0x7fff;
  const at = Math.abs(decode(magnitude));
  const below = magnitude ? decode(magnitude - 1) : 0;
  const above = decode(magnitude + 1);
  const upper = Number.isFinite(above) ? above : at + (at - below);
  const x = Math.abs(read);
  return x > (at + below) / 2 && x < (at + upper) / 2;
}

/** A float is told from an integer by its point. */
function withPoint(text: string): string {
  const shown = text.replace("e+", "e");
  return /[.e]/.test(shown) ? shown : `${shown}.0`;
}

const ROOM = 8; // characters that are written as they are
const DIGITS = 4; // of an element that needs more
const SMALL = 1e-4; // below, and from LARGE on, with an exponent
const LARGE = 1e8;

/**
 * An element's text as it stands in a cell: as it is where it is short, else rounded to four digits,
 * with zeros that say so, and to as many as tell it from an integer: 0.9999999 is not 1.
 */
export function shortText(text: string): string {
  const value = Number(text);
  const size = Math.abs(value);
  if (!/^-?[\d.]+(e-?\d+)?$/.test(text) || value === 0) {
    return text;
  }
  const point = size >= SMALL && size < LARGE;
  if (text.length <= ROOM && (point || /e/.test(text))) {
    return text;
  }
  if (text.length <= ROOM) {
    return value.toExponential().replace("e+", "e");
  }
  let digits = DIGITS;
  while (!Number.isInteger(value) && Number.isInteger(Number(value.toPrecision(digits)))) {
    digits++;
  }
  const whole = 10 ** digits;
  return point && size < whole
    ? value.toPrecision(digits)
    : value.toExponential(digits - 1).replace("e+", "e");
}
