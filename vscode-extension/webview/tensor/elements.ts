/** Elements of a tensor as they came: bytes, little-endian, the last axis fastest. */

import type { DType } from "../../shared/tensor/messages";
import { bfloatToNumber, halfToNumber, isFloat, itemSize, shortest } from "./dtypes";

/** What an element is to somebody who looks for what is wrong. */
export const FINITE = 0;
export const NAN = 1;
export const POSINF = 2;
export const NEGINF = 3;
export const UNWRITTEN = 4;
type Kind = 0 | 1 | 2 | 3 | 4;

type Raw =
  | Float64Array
  | Float32Array
  | Uint16Array
  | BigInt64Array
  | Int32Array
  | Int16Array
  | Int8Array
  | Uint8Array;

export class Elements {
  readonly length: number;
  private readonly raw: Raw;
  private readonly fill: readonly [number, number] | undefined;
  private bits32: Uint32Array | undefined;
  private decoded: Float64Array | Float32Array | undefined;

  /** `unwritten`: the bits, in hexadecimal, of an element that nothing wrote. */
  constructor(
    readonly dtype: DType,
    readonly shape: readonly number[],
    bytes: Uint8Array,
    unwritten?: string,
  ) {
    this.length = shape.reduce((a, b) => a * b, 1);
    const size = this.length * itemSize(dtype);
    if (bytes.byteLength !== size) {
      throw new Error(`${dtype}[${shape}] has ${size} bytes; ${bytes.byteLength} came`);
    }
    this.raw = typedView(dtype, bytes);
    if (unwritten) {
      const bits = unwritten.padStart(16, "0");
      this.fill = [Number.parseInt(bits.slice(8), 16), Number.parseInt(bits.slice(0, 8), 16)];
    }
  }

  /** All as numbers; what an f64 cannot hold (an i64 beyond 2**53) is rounded. */
  get numbers(): Float64Array | Float32Array {
    this.decoded ??= numbersOf(this.dtype, this.raw);
    return this.decoded;
  }

  number(index: number): number {
    return this.numbers[index] as number;
  }

  kind(index: number): Kind {
    const value = this.numbers[index] as number;
    if (Number.isFinite(value)) {
      return FINITE;
    }
    if (Number.isNaN(value)) {
      return this.fill !== undefined && this.isFill(index, this.fill) ? UNWRITTEN : NAN;
    }
    return value > 0 ? POSINF : NEGINF;
  }

  /** An element as it is, to the last bit. */
  text(index: number): string {
    const at = this.raw[index];
    if (at === undefined) {
      return "";
    }
    if (typeof at === "bigint") {
      return at.toString();
    }
    if (this.dtype === "bool") {
      return at ? "true" : "false";
    }
    if (!isFloat(this.dtype)) {
      return String(at);
    }
    return this.kind(index) === UNWRITTEN
      ? "never written"
      : shortest(this.number(index), this.dtype, at);
  }

  /** How many are of each kind. */
  counts(): [number, number, number, number, number] {
    const found: [number, number, number, number, number] = [0, 0, 0, 0, 0];
    if (!isFloat(this.dtype)) {
      found[FINITE] = this.length;
      return found;
    }
    for (let k = 0; k < this.length; k++) {
      found[this.kind(k)]++;
    }
    return found;
  }

  /** Their bytes, as they came. */
  bytes(): Uint8Array {
    return new Uint8Array(this.raw.buffer, this.raw.byteOffset, this.raw.byteLength);
  }

  private isFill(index: number, fill: readonly [number, number]): boolean {
    if (this.raw instanceof Uint16Array) {
      return this.raw[index] === fill[0];
    }
    this.bits32 ??= new Uint32Array(this.raw.buffer, this.raw.byteOffset);
    if (this.raw instanceof Float32Array) {
      return this.bits32[index] === fill[0];
    }
    return this.bits32[index * 2] === fill[0] && this.bits32[index * 2 + 1] === fill[1];
  }
}

function typedView(dtype: DType, bytes: Uint8Array): Raw {
  const aligned = bytes.byteOffset % itemSize(dtype) ? bytes.slice() : bytes;
  const count = aligned.byteLength / itemSize(dtype);
  const at = [aligned.buffer, aligned.byteOffset, count] as const;
  switch (dtype) {
    case "f64":
      return new Float64Array(...at);
    case "f32":
      return new Float32Array(...at);
    case "f16":
    case "bf16":
      return new Uint16Array(...at);
    case "i64":
      return new BigInt64Array(...at);
    case "i32":
      return new Int32Array(...at);
    case "i16":
      return new Int16Array(...at);
    case "i8":
      return new Int8Array(...at);
    default:
      return new Uint8Array(...at);
  }
}

function numbersOf(dtype: DType, raw: Raw): Float64Array | Float32Array {
  if (raw instanceof Float64Array || raw instanceof Float32Array) {
    return raw;
  }
  if (raw instanceof BigInt64Array) {
    return Float64Array.from(raw, Number);
  }
  if (dtype === "f16") {
    return Float32Array.from(raw, halfToNumber);
  }
  if (dtype === "bf16") {
    return Float32Array.from(raw, bfloatToNumber);
  }
  return Float64Array.from(raw);
}
