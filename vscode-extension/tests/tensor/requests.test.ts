import { expect, test } from "vitest";
import { call, openTensor } from "../../src/tensor/requests";

/** A debugger that has one tensor, and what it was asked. */
function debuggerWith(shape: number[]) {
  const asked: [string, Record<string, unknown>][] = [];
  const ask = async (command: string, given: Record<string, unknown>) => {
    asked.push([command, given]);
    if (command === "opstep/tensorType") {
      return { type: "f32", dtype: "f32", shape };
    }
    const bytes = Buffer.from(Float32Array.of(1, 2).buffer);
    return { dtype: "f32", shape: [2], of: [2], steps: [1], data: bytes.toString("base64") };
  };
  return { ask, asked };
}

test("elements come as bytes", async () => {
  const { ask, asked } = debuggerWith([2]);
  const slice = await call(ask, { frameId: 7 }, "slice", { expression: "x" });
  expect(slice.bytes).toEqual(new Uint8Array(Float32Array.of(1, 2).buffer));
  expect(asked).toEqual([["opstep/tensorSlice", { frameId: 7, expression: "x" }]]);
});

test("the first picture is asked for with the type, or behind it where the guess was wrong", async () => {
  const right = debuggerWith([4, 5]);
  const found = await openTensor(right.ask, { frameId: 1 }, "x", undefined, [4, 5]);
  expect(right.asked.map(([command]) => command)).toEqual([
    "opstep/tensorType",
    "opstep/tensorSlice",
  ]);
  expect(found.first?.part.rows).toEqual({ from: 0, to: 4, step: 1 });
  const wrong = debuggerWith([4, 6]);
  const again = await openTensor(wrong.ask, { frameId: 1 }, "x", undefined, [4, 5]);
  expect(wrong.asked).toHaveLength(3);
  expect(again.first?.part.columns.to).toBe(6);
});

test("no picture is asked for where a table was looked at last", async () => {
  const { ask, asked } = debuggerWith([4, 5]);
  const view = { mode: "table" } as Parameters<typeof openTensor>[3];
  expect((await openTensor(ask, { frameId: 1 }, "x", view)).first).toBeUndefined();
  expect(asked).toHaveLength(1);
});
