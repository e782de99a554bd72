/** NumPy's file format, version 1.0. */

import type { DType } from "../../shared/tensor/messages";
import { Elements } from "./elements";

const NAMES: Partial<Record<DType, string>> = {
  f64: "<f8",
  f32: "<f4",
  f16: "<f2",
  i64: "<i8",
  i32: "<i4",
  i16: "<i2",
  i8: "|i1",
  u8: "|u1",
  bool: "|b1",
};

/** The bytes of a file that holds elements. NumPy has no bf16: it is written as f32, exactly. */
export function npyOf(elements: Elements): Uint8Array {
  const name = NAMES[elements.dtype];
  if (!name) {
    const wide = Float32Array.from(elements.numbers);
    return npyOf(new Elements("f32", elements.shape, new Uint8Array(wide.buffer)));
  }
  const [...dims] = elements.shape;
  const shape = dims.length === 1 ? `(${dims[0]},)` : `(${dims.join(", ")})`;
  let header = `{'descr': '${name}', 'fortran_order': False, 'shape': ${shape}, }`;
  header += " ".repeat(63 - ((10 + header.length) % 64)); // with its end the data is aligned
  header += "\n";
  const data = elements.bytes();
  const file = new Uint8Array(10 + header.length + data.length);
  file.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0]);
  file[8] = header.length & 255;
  file[9] = header.length >> 8;
  file.set(new TextEncoder().encode(header), 10);
  file.set(data, 10 + header.length);
  return file;
}
