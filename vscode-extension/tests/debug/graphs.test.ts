import { describe, expect, it } from "vitest";
import { defaultGraph, graphAt, lineAfter, readProgram, symbolsOf } from "../../src/debug/graphs";

const TEXT = `# graph no(x: f32[N]) {
param w: f32[10, 64] = normal(std=0.1)

graph main(
  x: f32[N, 2*(N + 1)],  # a comment: y: f32[K]
  label: i32[N], scale: f32[],
) -> f32[] {
  y, z: f32[N] = split(
    x,
    sections=2,
  )
  fine = less(y, 1.0)
  assert fine, "a } in a text, graph no("
  step <- z
  total = sum(y)
  return total
}

graph same(v: f32[M, K]) -> f32[M, K] { return v }

graph half(v: f32[
`;

describe("readProgram", () => {
  const program = readProgram(TEXT);

  it("finds graphs with type variables", () => {
    const generic = readProgram("graph mean<T: float>(x: T[N]) -> T[] {\n  return x\n}\n");
    expect(generic.graphs[0]?.inputs).toEqual([{ name: "x", dtype: "T", dims: ["N"] }]);
  });

  it("finds graphs with their inputs, comments and texts left out", () => {
    expect(program.graphs).toEqual([
      {
        name: "main",
        line: 3,
        endLine: 16,
        inputs: [
          { name: "x", dtype: "f32", dims: ["N", "2*(N + 1)"] },
          { name: "label", dtype: "i32", dims: ["N"] },
          { name: "scale", dtype: "f32", dims: [] },
        ],
      },
      {
        name: "same",
        line: 18,
        endLine: 18,
        inputs: [{ name: "v", dtype: "f32", dims: ["M", "K"] }],
      },
    ]);
    expect(program.hasParams).toBe(true);
  });

  it("takes Windows' line ends and a file without graphs", () => {
    expect(readProgram("graph a(x: f32[N]) -> f32[N] {\r\n  return x\r\n}\r\n").graphs).toEqual([
      { name: "a", line: 0, endLine: 2, inputs: [{ name: "x", dtype: "f32", dims: ["N"] }] },
    ]);
    expect(readProgram("state step: i32[] = 0\n")).toEqual({ graphs: [], hasParams: false });
  });

  it("knows the symbols that inputs bind", () => {
    expect(program.graphs.map((g) => symbolsOf(g.inputs))).toEqual([["N"], ["M", "K"]]);
  });

  it.each([
    [0, undefined],
    [3, "main"],
    [10, "main"],
    [16, "main"],
    [17, undefined],
    [18, "same"],
  ])("line %i is in %s", (line, name) => {
    expect(graphAt(program, line)?.name).toBe(name);
  });

  it("takes the only graph, or main", () => {
    expect(defaultGraph(program)?.name).toBe("main");
    expect(defaultGraph(readProgram("graph a() {\n}\n"))?.name).toBe("a");
    expect(defaultGraph(readProgram("graph a() {\n}\ngraph b() {\n}\n"))).toBeUndefined();
  });
});

describe("lineBehind", () => {
  it.each([
    ["x", 7],
    ["label", 7],
    ["y", 11],
    ["z", 11],
    ["fine", 12],
    ["total", 15],
  ])("%s", (value, line) => {
    expect(lineAfter(TEXT, "main", value)).toBe(line);
  });

  it("finds none for what is not computed there", () => {
    expect(lineAfter(TEXT, "main", "sections")).toBeUndefined();
    expect(lineAfter(TEXT, "main", "step")).toBeUndefined();
    expect(lineAfter(TEXT, "none", "x")).toBeUndefined();
  });

  it("finds a statement on the line of the braces", () => {
    expect(lineAfter(TEXT, "same", "v")).toBe(18);
  });
});
