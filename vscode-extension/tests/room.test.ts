import { describe, expect, it } from "vitest";
import {
  columnFor,
  divided,
  hasColumns,
  type Layout,
  rearranged,
  restored,
  sharesOf,
} from "../shared/room";

const CODE = { views: false, texts: true, empty: false };
const VIEWS = { views: true, texts: false, empty: false };
const OTHER = { views: false, texts: false, empty: false };
const EMPTY = { views: false, texts: false, empty: true };

describe("columnFor", () => {
  it.each([
    ["a window without tabs keeps one group", [EMPTY], undefined, 1],
    ["the first view goes beside the code", [CODE], 1, 2],
    ["another goes where views are", [CODE, VIEWS], 1, 2],
    ["also where they stand on the left", [VIEWS, CODE], 2, 1],
    ["also where the view itself has the focus", [CODE, VIEWS], undefined, 2],
    ["a timeline among the code does not count", [{ ...CODE, views: true }], 1, 2],
    ["two groups of code do not become three", [CODE, CODE], 1, 2],
    ["the code that was looked at last stays in sight", [CODE, CODE], 2, 1],
    ["a terminal beside the code shares its group", [CODE, OTHER], undefined, 2],
    ["three groups stay three", [CODE, CODE, OTHER], 1, 3],
  ])("%s", (_, groups, code, column) => {
    expect(columnFor(groups, code)).toBe(column);
  });
});

describe("restored", () => {
  it.each([
    ["the last group of views is unlocked when it is empty", [VIEWS], [EMPTY], "unlock"],
    ["also where code and views are closed at once", [CODE, VIEWS], [EMPTY], "unlock"],
    ["a group that a person has locked stays so", [CODE], [EMPTY], undefined],
    ["code that is opened behind views goes before them", [VIEWS], [VIEWS, CODE], "swap"],
    ["views that a person has moved stay there", [CODE, VIEWS], [VIEWS, CODE], undefined],
    ["a view that is opened beside code is where it belongs", [CODE], [CODE, VIEWS], undefined],
    ["a terminal is not code", [VIEWS], [VIEWS, OTHER], undefined],
  ])("%s", (_, before, now, act) => {
    expect(restored(before, now)).toBe(act);
  });
});

describe("divided", () => {
  const columns = (...sizes: number[]): Layout => ({
    orientation: 0,
    groups: sizes.map((size) => ({ size })),
  });

  it("leaves a wide window as the workbench divides it", () => {
    expect(divided(columns(620, 620), { width: 620, height: 800 }, {})).toBeUndefined();
  });

  it("puts a view below the code where columns are narrow", () => {
    const half = { size: 0.5 };
    const rows = { orientation: 1, groups: [half, half] };
    expect(divided(columns(338, 338), { width: 338, height: 610 }, {})).toEqual(rows);
  });

  it("keeps columns where there is no height for two", () => {
    expect(divided(columns(338, 338), { width: 338, height: 400 }, {})).toBeUndefined();
  });

  it("divides as the last time", () => {
    const saved = { 0: [0.7, 0.3], 1: [0.4, 0.6] };
    const wide = divided(columns(800, 800), { width: 800, height: 600 }, saved);
    expect(wide).toEqual({ orientation: 0, groups: [{ size: 0.7 }, { size: 0.3 }] });
    const narrow = divided(columns(338, 338), { width: 338, height: 610 }, saved);
    expect(narrow).toEqual({ orientation: 1, groups: [{ size: 0.4 }, { size: 0.6 }] });
  });

  it("puts a text beside code only where both are wide enough", () => {
    expect([columns(1240), columns(720), columns()].map(hasColumns)).toEqual([true, false, false]);
  });

  it("leaves three groups alone", () => {
    expect(sharesOf(columns(300, 300, 300))).toBeUndefined();
    expect(divided(columns(300, 300, 300), { width: 300, height: 800 }, {})).toBeUndefined();
  });
});

describe("rearranged", () => {
  const layout = (orientation: 0 | 1, ...sizes: number[]): Layout => ({
    orientation,
    groups: sizes.map((size) => ({ size })),
  });
  const view = (width: number, height: number, at = 1) => ({ width, height, at });
  const half = [{ size: 0.5 }, { size: 0.5 }];

  it("puts a view below the code where the window has become too narrow for columns", () => {
    const below = { orientation: 1, groups: half };
    expect(rearranged(layout(0, 280, 440), view(440, 600), {}, false)).toEqual(below);
    expect(rearranged(layout(0, 440, 280), view(440, 600, 0), {}, false)).toEqual(below);
    expect(rearranged(layout(0, 280, 440), view(440, 400), {}, false)).toBeUndefined();
  });

  it("leaves columns that a person has made narrow in a wide window", () => {
    expect(rearranged(layout(0, 900, 300), view(300, 800), {}, false)).toBeUndefined();
  });

  it("puts it beside the code again where that was our doing, and there is room as it was divided", () => {
    const beside = { orientation: 0, groups: half };
    expect(rearranged(layout(1, 400, 400), view(1240, 400), {}, true)).toEqual(beside);
    expect(rearranged(layout(1, 400, 400), view(1240, 400), {}, false)).toBeUndefined();
    const saved = { 0: [0.7, 0.3] };
    expect(rearranged(layout(1, 400, 400), view(1240, 400), saved, true)).toBeUndefined();
    expect(rearranged(layout(1, 300, 300), view(720, 300), {}, true)).toBeUndefined();
  });

  it("leaves three groups alone", () => {
    expect(rearranged(layout(0, 200, 200, 200), view(200, 800), {}, false)).toBeUndefined();
  });
});
