/** The table of values: rows, what is asked for, what stands at the ends of lines. */

import { describe, expect, it } from "vitest";
import { aligned, widthBehind } from "../../shared/format";
import { FITTED, fitted } from "../../shared/values/columns";
import type { FrameValues, Value } from "../../shared/values/messages";
import { cellText, filtered, isCheap, sorted } from "../../shared/values/rows";
import { asTyped } from "../../shared/values/typed";
import { lineValues, resultValues } from "../../src/debug/lineValues";
import { Requests } from "../../webview/values/requests";

const FINE = { nan: 0, posinf: 0, neginf: 0 };

function value(name: string, more: Partial<Value> = {}): Value {
  return { name, kind: "value", type: "f32[4, 5]", bytes: 80, ...more };
}

const P = value("p", {
  kind: "input",
  line: 2,
  text: "mean 0.2",
  statistics: { ...FINE, min: 0, max: 1, mean: 0.2 },
});
const LG = value("lg", {
  line: 3,
  text: "7 -inf of 20, mean of the rest -27.8",
  statistics: { ...FINE, neginf: 7, min: -80.03, max: 0, mean: -27.82 },
});
const H = value("h", {
  line: 4,
  text: "7 NaN of 20, mean of the rest -0.011",
  statistics: { ...FINE, nan: 7, min: -0.09619, max: 0, mean: -0.01128 },
});
const W = value("conv.w", { kind: "param", type: "f32[10, 20]", bytes: 800, line: 1 });
const ALL = [P, LG, H, W];

describe("rows", () => {
  const names = (values: Value[]) => values.map((v) => v.name);

  it("are what is not finite first, else in the order of the program", () => {
    expect(names(sorted(ALL, undefined))).toEqual(["lg", "h", "p", "conv.w"]);
  });

  it("are sorted by any column, what is not known last in both directions", () => {
    expect(names(sorted(ALL, { column: "mean", descending: false }))).toEqual([
      "lg",
      "h",
      "p",
      "conv.w",
    ]);
    expect(names(sorted(ALL, { column: "mean", descending: true }))).toEqual([
      "p",
      "h",
      "lg",
      "conv.w",
    ]);
    expect(names(sorted(ALL, { column: "NaN", descending: true }))[0]).toBe("h");
    expect(names(sorted(ALL, { column: "memory", descending: true }))[0]).toBe("conv.w");
    expect(
      names(sorted([value("v10"), value("v9")], { column: "name", descending: false })),
    ).toEqual(["v9", "v10"]);
  });

  it("are filtered by all words of name, kind and type, and by trouble", () => {
    expect(names(filtered(ALL, "conv PARAM", false))).toEqual(["conv.w"]);
    expect(names(filtered(ALL, "[4, 5]", false))).toEqual(["p", "lg", "h"]);
    expect(names(filtered(ALL, "", true))).toEqual(["lg", "h"]);
  });

  it("are written with few digits, whose points stand under each other", () => {
    expect(cellText(H, "NaN")).toBe("7");
    expect(cellText(P, "NaN")).toBe("");
    expect(cellText(H, "mean")).toBe("-0.01128");
    expect(cellText(W, "mean")).toBe("");
    expect(cellText(W, "memory")).toBe("800 B");
    expect(cellText(value("x", { bytes: 3 << 20 }), "memory")).toBe("3.0 MiB");
    const column = ["-80.03", "7", "1.5e-33"];
    const behind = Math.max(...column.map(widthBehind));
    const points = column.map((text) => aligned(text, behind).search(/(?<=\d)[.\u00a0]/));
    expect(column.map((text, k) => aligned(text, behind).length - (points[k] ?? 0))).toEqual([
      6, 6, 6,
    ]);
  });
});

describe("columns", () => {
  /** name, type, NaN, inf, min, max, mean, memory, line */
  const WIDTHS = [22, 14, 4, 3, 9, 9, 9, 8, 4];
  const shown = (widths: number[]) => widths.slice(0, FITTED).reduce((sum, w) => sum + w, 0);

  it("stay as wide as what they hold where there is room", () => {
    expect(fitted(WIDTHS, 70)).toEqual(WIDTHS);
  });

  it("show figures up to the mean in a narrow view: names and types are cut", () => {
    const narrow = fitted(WIDTHS, 56);
    expect(shown(narrow)).toBeCloseTo(56);
    expect(narrow.slice(2)).toEqual(WIDTHS.slice(2));
    const least = fitted(WIDTHS, 20);
    expect(least.slice(0, 2)).toEqual([10, 8]); // the rest is scrolled to
    expect(fitted([3, 6, ...WIDTHS.slice(2)], 20).slice(0, 2)).toEqual([3, 6]);
  });
});

describe("statistics", () => {
  it("are asked for in sight first, a few at a time, and of what is large only by hand", () => {
    const asked: string[][] = [];
    const requests = new Requests((names) => asked.push(names));
    const many = Array.from({ length: 200 }, (_, k) => value(`v${k}`));
    const large = value("large", { bytes: 1 << 30 });
    expect(isCheap(large)).toBe(false);
    requests.want([value("v150"), large]);
    expect(asked).toEqual([["v150"]]);
    requests.wantAll(many);
    expect(asked).toHaveLength(1); // one request at a time
    requests.answered([value("v150", { statistics: FINE })]);
    expect(asked[1]).toHaveLength(64);
    expect(asked[1]).not.toContain("v150");
    requests.want([large], true);
    requests.answered(asked[1]?.map((name) => value(name, { statistics: FINE })) ?? []);
    expect(asked[2]?.[0]).toBe("large");
  });

  it("that do not come are not asked for without end", () => {
    const asked: string[][] = [];
    const requests = new Requests((names) => asked.push(names));
    requests.want([value("v")]);
    requests.answered([]);
    requests.want([value("v")]);
    expect(asked).toHaveLength(1);
    requests.clear();
    requests.want([value("v")]);
    expect(asked).toHaveLength(2);
  });
});

describe("values at the ends of lines", () => {
  const TEXT = [
    "param conv.w: f32[10, 20] = ones()",
    "graph information(p: f32[N, K]) -> f32[N] {",
    "  lg = log(p)",
    "  h = mul(p, lg)  # not conv.w",
    "  total = sum(h, axes=[1])",
  ];
  const textOf = (line: number) => TEXT[line - 1];
  const frame = (values: Value[], hasRun = false): FrameValues => ({
    graph: "information",
    source: {},
    hasRun,
    total: values.length,
    values,
  });

  it("are results and inputs; the line that is next has what its op reads", () => {
    expect(lineValues(frame([P, LG]), 4, textOf)).toEqual([
      { line: 2, text: "p = mean 0.2", troubled: false },
      { line: 3, text: "7 -inf of 20, mean of the rest -27.8", troubled: true },
      {
        line: 4,
        text: "p = mean 0.2, lg = 7 -inf of 20, mean of the rest -27.8",
        troubled: true,
      },
    ]);
  });

  it("are on the line of the stop where its op has run", () => {
    const found = lineValues(frame([P, LG, H], true), 4, textOf);
    expect(found.at(-1)).toEqual({ line: 4, text: H.text, troubled: true });
    // Of the turn of a loop before: what is next has not computed it in this one.
    expect(lineValues(frame([P, LG, H]), 4, textOf).at(-1)?.text).toMatch(/^p = /);
  });

  it("leave params alone that are finite, and lines that have changed", () => {
    const odd = { ...W, text: "1 NaN of 200", statistics: { ...FINE, nan: 1 } };
    const fine = { ...W, text: "all 1", statistics: FINE };
    const state = { ...fine, kind: "state" as const };
    const lines = (w: Value) => lineValues(frame([w]), 5, textOf).map((l) => l.line);
    expect([lines(fine), lines(odd), lines(state)]).toEqual([[], [1], [1]]);
    expect(lineValues(frame([{ ...LG, line: 5 }]), 9, textOf)).toEqual([]);
  });

  it("have at a line of Python what the op gave that a stop is behind", () => {
    expect(resultValues(frame([P, LG, H], true), 4, 12)).toEqual([
      { line: 12, text: "h = 7 NaN of 20, mean of the rest -0.011", troubled: true },
    ]);
    expect(resultValues(frame([P, LG, H]), 4, 12)).toEqual([]);
  });

  it("are cut where a line has many, and begin with what is not finite", () => {
    const many = Array.from({ length: 9 }, (_, k) => ({ ...P, name: `p${k}` }));
    const found = lineValues(frame(many), 9, () => many.map((v) => v.name).join(", "));
    expect(found[0]?.text).toHaveLength(110);
  });
});

it("a box for a new value holds the elements as they are typed", () => {
  expect(asTyped("[[0.10000000149011612, nan], [-inf, 1e-33]]", "f32[2, 2]")).toBe(
    "[[0.1, nan], [-inf, 1e-33]]",
  );
  expect(asTyped("[True, False]", "bool[2]")).toBe("[true, false]");
  expect(asTyped("[0.10000000149011612]", "f64[1]")).toBe("[0.10000000149011612]");
  for (const number of [1.4003692e-33, 16777217, 0.020631852, 3.4028235e38]) {
    const element = Math.fround(number);
    expect(Math.fround(Number(asTyped(String(element), "f32[]")))).toBe(element);
  }
});
