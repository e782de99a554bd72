/** Which tensors are offered, and what an answer means. */

import { expect, it, vi } from "vitest";
import type { Value } from "../../shared/values/messages";
import { choicesOf, expressionOf } from "../../src/tensor/pick";

vi.mock("vscode", () => ({}));

const value = (name: string, more: Partial<Value> = {}): Value => ({
  name,
  kind: "value",
  type: "f32[4]",
  bytes: 16,
  ...more,
});
const VALUES = [
  value("x", { kind: "input" }),
  value("relu_2", { text: "mean 0.2" }),
  value("relu"),
  value("2d", { expression: "`2d`" }),
  value("conv.w", { kind: "param" }),
];

it("values are offered newest first, behind Python's variables and before what was given", () => {
  const local = { name: "relu", type: "f32[8] (mul)", value: "all 1", variablesReference: 0 };
  const found = choicesOf({ values: VALUES }, [local]);
  expect(found.map(({ label }) => label)).toEqual(["relu", "2d", "relu_2", "x", "conv.w"]);
  expect(found[0]?.description).toBe("f32[8] (mul)  all 1");
  expect(found[2]?.description).toBe("f32[4]  mean 0.2");
});

it("an answer is the name that was typed, the value that was chosen, or an expression", () => {
  const choices = choicesOf({ values: VALUES }, []);
  const relu2 = choices.find(({ label }) => label === "relu_2");
  expect(expressionOf("relu", relu2, choices)).toBe("relu");
  expect(expressionOf("re", relu2, choices)).toBe("relu_2");
  expect(expressionOf("2d", undefined, choices)).toBe("`2d`");
  expect(expressionOf(" x[0, :3] ", { label: "this expression" }, choices)).toBe("x[0, :3]");
  expect(expressionOf("", undefined, choices)).toBeUndefined();
});
