/** From slices of a timeline to lines of a program, and among the slices of a line. */

import { describe, expect, it } from "vitest";
import { candidatePaths, findStatement, textFrom } from "../../src/timeline/statements";
import { describeSlice, nextIndex } from "../../webview/timeline/slices";

const TEXT = `graph main(x: f32[N]) -> f32[N] {
  a = relu(x)  # first
  b = concat(
    a, a,
    axis=0,
  )
  # c = exp(b)
  c = exp(b)
  return c
}
`;

describe("the line of a statement", () => {
  it("is the one that it ran on, while it stands there", () => {
    expect(findStatement(TEXT, 1, "a = relu(x)")).toBe(1);
    expect(findStatement(TEXT, 2, "b = concat(a, a, axis=0)")).toBe(2);
  });

  it("is the nearest one where lines were put in or taken out", () => {
    expect(findStatement(`# new\n\n${TEXT}`, 1, "a = relu(x)")).toBe(3);
    expect(findStatement(TEXT, 40, "c = exp(b)")).toBe(7);
    expect(findStatement(TEXT, 5, "c = exp(b)")).toBe(7);
    expect(findStatement(TEXT.replace("x)", "x, slope = 1)"), 1, "a = relu(x, slope=1)")).toBe(1);
  });

  it("is none where the statement is gone", () => {
    expect(findStatement(TEXT, 1, "a = gelu(x)")).toBeUndefined();
    expect(findStatement("", 3, "a = relu(x)")).toBeUndefined();
  });

  it("is as it was told where there is no statement", () => {
    expect(findStatement(TEXT, 4, "")).toBe(4);
    expect(findStatement(TEXT, 400, "")).toBeUndefined();
  });
});

describe("what stands on a line", () => {
  it("has no comments, and goes on below", () => {
    expect(textFrom(TEXT, 1).startsWith("  a = relu(x)  \n  b = concat(")).toBe(true);
    expect(textFrom(TEXT, 99)).toBe("");
    expect(textFrom("x = y(1)\n".repeat(10_000), 0).length).toBe(4000);
  });
});

describe("files that a trace names", () => {
  it("are looked for below folders where they are relative", () => {
    expect(candidatePaths("m/a.opg", ["/w", "/t/"])).toEqual(["/w/m/a.opg", "/t/m/a.opg"]);
    expect(candidatePaths("/abs/a.opg", ["/w"])).toEqual(["/abs/a.opg"]);
    expect(candidatePaths("C:\\x\\a.opg", ["/w"])).toEqual(["C:\\x\\a.opg"]);
  });
});

describe("the slices of a line", () => {
  const slice = (step: string, run = "1f") => ({
    id: step,
    name: "c = exp",
    ts: "0",
    dur: "8570",
    run,
    step,
  });

  it("are told of by number, step and time, and run where there are several", () => {
    expect(describeSlice([slice("0"), slice("1")], 1)).toBe("c = exp · 2 of 2 · step 1 · 8.57 µs");
    expect(describeSlice([slice("0"), slice("0", "2e")], 1)).toContain("step 0 of run 2e");
    expect(describeSlice([], 0)).toBe("");
  });

  it("follow each other in a ring", () => {
    expect([
      nextIndex(3, 2, 1),
      nextIndex(3, 0, -1),
      nextIndex(1, 0, 1),
      nextIndex(0, 0, 1),
    ]).toEqual([0, 2, 0, -1]);
  });
});
