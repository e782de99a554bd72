import { describe, expect, it, test } from "vitest";
import type { TensorType } from "../../shared/tensor/messages";
import { subjectOf } from "../../src/tensor/subjects";
import { Model } from "../../webview/tensor/model";

function modelOf(type: Partial<TensorType>): Model {
  const model = new Model();
  model.subject = { expression: "x" };
  model.setType({ type: "", dtype: "f32", shape: [2, 3], ...type });
  return model;
}

describe("a tensor of a script", () => {
  const python = modelOf({ language: "python" });
  const graph = modelOf({});

  it("has places of elements by their kind, where a graph has an expression", () => {
    const mask = (x: string) => `isnan(${x})`;
    expect(python.placesOf("nan", "x", mask, [0, 10])).toEqual({
      expression: "x",
      places: "nan",
      first: 0,
      count: 10,
    });
    expect(graph.placesOf("nan", "x", mask, [0, 10])).toEqual({
      expression: "where(isnan(x))[:10]",
    });
    expect(graph.placesOf("nan", "x", mask, [10, 10]).expression).toBe("where(isnan(x))[10:20]");
  });

  it.each([
    ["nan", 'float("nan")'],
    ["-Inf", 'float("-Inf")'],
    ["true", "True"],
    ["1e-3", "1e-3"],
    ["y[0]", "y[0]"],
  ])("is set to %s as Python writes it", (typed, written) => {
    expect(python.written(typed)).toBe(written);
    expect(graph.written(typed)).toBe(typed);
  });

  it("is compared with expressions only: of steps before there is no record", () => {
    const { comparison } = python.view;
    python.view.comparison = { ...comparison, kind: "step" };
    graph.view.comparison = { ...comparison, kind: "step" };
    expect(python.earlier).toBeUndefined();
    expect(graph.earlier).toBe("(x)@-1");
    python.view.comparison = { ...comparison, kind: "expression", expression: "y" };
    expect(python.earlier).toBe("y");
  });

  it.each([
    ["bf16", true],
    ["f64", true],
    ["i32", false],
    ["bool", false],
  ] as const)("of %s: whether it can hold NaNs", (dtype, can) => {
    expect(modelOf({ dtype }).isFloat).toBe(can);
  });
});

test("a variable is meant by its expression, or by where it is", () => {
  const variable = { name: "w", type: "Tensor" };
  const named = { ...variable, evaluateName: "box.w" };
  expect(subjectOf({ variable: named }, undefined, true)).toEqual({ expression: "box.w" });
  expect(subjectOf({ variable: { ...variable, memoryReference: "7:w" } }, undefined, true)).toEqual(
    { expression: "value", memoryReference: "7:w", label: "w" },
  );
});
