import { describe, expect, test } from "vitest";
import { bfloatToNumber, halfToNumber, shortest, shortText } from "../../webview/tensor/dtypes";
import { Elements, FINITE, NAN, NEGINF, POSINF, UNWRITTEN } from "../../webview/tensor/elements";
import { npyOf } from "../../webview/tensor/npy";

function bytesOf(array: ArrayBufferView): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

function words(...bits: number[]): Uint8Array {
  return bytesOf(Uint16Array.from(bits));
}

describe("elements are read to the last bit", () => {
  test.each([
    [0x0000, 0],
    [0x0001, 2 ** -24],
    [0x03ff, 1023 * 2 ** -24],
    [0x0400, 2 ** -14],
    [0x3c00, 1],
    [0x3555, 0.333251953125],
    [0x7bff, 65504],
    [0xc000, -2],
    [0x7c00, Number.POSITIVE_INFINITY],
    [0xfc00, Number.NEGATIVE_INFINITY],
  ])("f16 %i is %d", (bits, number) => {
    expect(halfToNumber(bits)).toBe(number);
  });

  test("all f16 are told apart by what is written", () => {
    const seen = new Set<string>();
    let numbers = 0;
    for (let bits = 0; bits < 65536; bits++) {
      const text = shortest(halfToNumber(bits), "f16", bits);
      if (text !== "nan") {
        seen.add(text);
        numbers++;
      }
    }
    expect(numbers).toBe(2 * 31 * 1024 + 2);
    expect(seen.size).toBe(numbers);
  });

  test("bf16 is the upper half of an f32", () => {
    expect(bfloatToNumber(0x3f80)).toBe(1);
    expect(bfloatToNumber(0xff80)).toBe(Number.NEGATIVE_INFINITY);
    expect(bfloatToNumber(0x7f7f)).toBe(3.3895313892515355e38);
    expect(shortest(bfloatToNumber(0x3dcd), "bf16", 0x3dcd)).toBe("0.1");
  });

  test("f32 is written as short as it can be read back", () => {
    for (const x of [0.1, 1 / 3, 3.4e38, 1e-45, 16777216, -2.5, 123456.789]) {
      const value = Math.fround(x);
      const text = shortest(value, "f32");
      expect(Math.fround(Number(text))).toBe(value);
      expect(text.length).toBeLessThanOrEqual(14);
    }
    expect(shortest(Math.fround(0.1), "f32")).toBe("0.1");
    expect(shortest(-0, "f32")).toBe("-0.0");
    expect(shortest(3, "f64")).toBe("3.0");
  });

  test("integers beyond 2**53 are exact", () => {
    const found = new Elements(
      "i64",
      [3],
      bytesOf(BigInt64Array.of(-(2n ** 63n), 2n ** 53n + 1n, 7n)),
    );
    expect([0, 1, 2].map((k) => found.text(k))).toEqual([
      "-9223372036854775808",
      "9007199254740993",
      "7",
    ]);
    expect(found.number(2)).toBe(7);
  });

  test("bools and small integers", () => {
    expect(new Elements("bool", [2], Uint8Array.of(0, 1)).text(1)).toBe("true");
    expect(new Elements("i8", [2], Uint8Array.of(255, 127)).numbers).toEqual(
      Float64Array.of(-1, 127),
    );
    expect(new Elements("u8", [1], Uint8Array.of(255)).text(0)).toBe("255");
  });

  test("a scalar and an empty tensor", () => {
    expect(new Elements("f32", [], bytesOf(Float32Array.of(2.5))).text(0)).toBe("2.5");
    expect(new Elements("f32", [4, 0], new Uint8Array()).counts()).toEqual([0, 0, 0, 0, 0]);
    expect(() => new Elements("f32", [2], new Uint8Array(4))).toThrow("has 8 bytes; 4 came");
  });

  test("bytes that begin at an odd address", () => {
    const raw = new Uint8Array(9);
    raw.set(bytesOf(Float32Array.of(1.5, -2)), 1);
    expect(new Elements("f32", [2], raw.subarray(1)).numbers).toEqual(Float32Array.of(1.5, -2));
  });
});

describe("what is no number is told apart", () => {
  const cases = [
    [
      "f32",
      bytesOf(Uint32Array.of(0x3f800000, 0x7fc00000, 0x7f800000, 0xff800000, 0x7fc05eed)),
      "7fc05eed",
    ],
    ["f16", words(0x3c00, 0x7e00, 0x7c00, 0xfc00, 0x7e5d), "7e5d"],
    ["bf16", words(0x3f80, 0x7fc0, 0x7f80, 0xff80, 0x7fde), "7fde"],
    [
      "f64",
      bytesOf(
        BigUint64Array.of(
          0x3ff0000000000000n,
          0x7ff8000000000000n,
          0x7ff0000000000000n,
          0xfff0000000000000n,
          0x7ff8dead0b5e55edn,
        ),
      ),
      "7ff8dead0b5e55ed",
    ],
  ] as const;

  test.each(cases)("%s", (dtype, bytes, unwritten) => {
    const found = new Elements(dtype, [5], bytes, unwritten);
    expect([0, 1, 2, 3, 4].map((k) => found.kind(k))).toEqual([
      FINITE,
      NAN,
      POSINF,
      NEGINF,
      UNWRITTEN,
    ]);
    expect([1, 2, 3, 4].map((k) => found.text(k))).toEqual(["nan", "inf", "-inf", "never written"]);
    expect(found.counts()).toEqual([1, 1, 1, 1, 1]);
    expect(new Elements(dtype, [5], bytes).kind(4)).toBe(NAN);
  });
});

describe("files for NumPy", () => {
  function read(file: Uint8Array): { header: string; data: Uint8Array } {
    const length = (file[8] as number) + 256 * (file[9] as number);
    const header = new TextDecoder().decode(file.subarray(10, 10 + length));
    expect((10 + length) % 64).toBe(0);
    expect(header.endsWith("\n")).toBe(true);
    return { header: header.trim(), data: file.subarray(10 + length) };
  }

  test.each([
    [[2, 3], "(2, 3)"],
    [[6], "(6,)"],
    [[], "()"],
  ])("shape %j", (shape, text) => {
    const count = shape.reduce((a, b) => a * b, 1);
    const numbers = Float32Array.from({ length: count }, (_, k) => k / 3);
    const { header, data } = read(npyOf(new Elements("f32", shape, bytesOf(numbers))));
    expect(header).toBe(`{'descr': '<f4', 'fortran_order': False, 'shape': ${text}, }`);
    expect(data).toEqual(bytesOf(numbers));
  });

  test("bf16 becomes f32, exactly", () => {
    const { header, data } = read(npyOf(new Elements("bf16", [2], words(0x3dcd, 0xc000))));
    expect(header).toContain("<f4");
    expect(new Float32Array(data.slice().buffer)).toEqual(
      Float32Array.of(bfloatToNumber(0x3dcd), -2),
    );
  });
});

test.each([
  ["0.0", "0.0"],
  ["1.0", "1.0"],
  ["0.9999999", "0.9999999"],
  ["-0.99999994", "-0.9999999"],
  ["0.99634993", "0.9963"],
  ["0.25000003", "0.2500"],
  ["-0.0000015389", "-1.539e-6"],
  ["-0.00001", "-1e-5"],
  ["-1.1920929e-7", "-1.192e-7"],
  ["1.4e-33", "1.4e-33"],
  ["1.39999998e-33", "1.400e-33"],
  ["12345.678", "12345.7"],
  ["1234.5678", "1234.6"],
  ["123456789", "1.235e8"],
  ["12345678", "12345678"],
  ["-inf", "-inf"],
  ["true", "true"],
])("a cell has %s as %s", (text, shown) => {
  expect(shortText(text)).toBe(shown);
});
