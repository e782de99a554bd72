import { describe, expect, test } from "vitest";
import { type Axes, defaultAxes, fitAxes, roleOf, withRole } from "../../shared/tensor/axes";
import type { MapName } from "../../shared/tensor/messages";
import {
  elementsOf,
  partExpression,
  placeOf,
  stridesOf,
  wholePart,
} from "../../shared/tensor/parts";
import { firstPart } from "../../src/tensor/requests";
import { colourAt, MAPS, SPECIAL, table } from "../../webview/tensor/colours";
import { Elements } from "../../webview/tensor/elements";
import { comparedExpression } from "../../webview/tensor/model";
import { Difference, paint } from "../../webview/tensor/painting";
import { extentOf, percentiles, placer, scaleOf } from "../../webview/tensor/scaling";
import {
  covers,
  layOut,
  overview,
  spotAt,
  tileOrigin,
  visible,
  worldHeight,
  worldWidth,
  zoomAt,
} from "../../webview/tensor/tiles";

const axes = (shape: number[], more: Partial<Axes> = {}): Axes => ({
  ...defaultAxes(shape),
  ...more,
});

function tensor(shape: number[], value: (k: number) => number = (k) => k): Elements {
  const count = shape.reduce((a, b) => a * b, 1);
  const numbers = Float64Array.from({ length: count }, (_, k) => value(k));
  return new Elements("f64", shape, new Uint8Array(numbers.buffer));
}

describe("axes", () => {
  test.each([
    [[], { rows: -1, columns: -1, tiles: -1, colours: -1 }],
    [[7], { rows: -1, columns: 0, tiles: -1, colours: -1 }],
    [[3, 4], { rows: 0, columns: 1, tiles: -1, colours: -1 }],
    [[64, 256, 56, 56], { rows: 2, columns: 3, tiles: 1, colours: -1 }],
    [[8, 3, 32, 32], { rows: 2, columns: 3, tiles: 0, colours: 1 }],
    [[8, 1, 28, 28], { rows: 2, columns: 3, tiles: 0, colours: -1 }],
    [[32, 32, 3], { rows: 0, columns: 1, tiles: -1, colours: 2 }],
    [[2, 3, 4, 5, 6], { rows: 3, columns: 4, tiles: 2, colours: -1 }],
  ])("of %j", (shape, roles) => {
    expect(defaultAxes(shape)).toMatchObject(roles);
  });

  test("a role that is given is taken from who had it", () => {
    const swapped = withRole(axes([4, 5, 6]), 0, "rows");
    expect(swapped).toMatchObject({ tiles: 1, rows: 0, columns: 2 });
    const fixed = withRole(axes([4, 5, 6]), 0, undefined);
    expect(roleOf(fixed, 0)).toBeUndefined();
  });

  test("what was remembered is kept where it fits", () => {
    const known = axes([4, 5, 6], { tiles: -1, at: [3, 0, 0] });
    expect(fitAxes(known, [9, 5, 6]).at).toEqual([3, 0, 0]);
    expect(fitAxes(known, [2, 5, 6]).at).toEqual([1, 0, 0]);
    expect(fitAxes(known, [4, 5])).toEqual(defaultAxes([4, 5]));
  });
});

describe("parts", () => {
  test.each([
    ["x", [], "x"],
    ["x", [5], "x"],
    ["x", [4, 5], "x"],
    ["x", [2, 4, 5, 6], "x[0]"],
    ["a.w", [2, 4, 5, 6], "a.w[0]"],
    ["x@-1", [2, 4, 5, 6], "(x@-1)[0]"],
  ])("%s of %j is %s", (expression, shape, text) => {
    expect(partExpression(expression, shape, wholePart(axes(shape), shape))).toBe(text);
  });

  test("only what is seen is asked for", () => {
    const shape = [2, 40, 50, 60];
    const part = {
      axes: axes(shape, { at: [1, 0, 0, 0] }),
      tiles: { from: 3, to: 9, step: 1 },
      rows: { from: 0, to: 50, step: 2 },
      columns: { from: 16, to: 32, step: 1 },
    };
    expect(partExpression("x", shape, part)).toBe("x[1, 3:9, ::2, 16:32]");
    expect(elementsOf(part)).toBe(6 * 25 * 16);
    expect(stridesOf(part, 4)).toEqual({ tiles: 400, rows: 16, columns: 1, colours: 0 });
  });

  test("rows and columns may be turned round", () => {
    const shape = [4, 5];
    const turned = axes(shape, { rows: 1, columns: 0 });
    expect(stridesOf(wholePart(turned, shape), 2)).toMatchObject({ rows: 1, columns: 5 });
    expect(placeOf(turned, 0, 3, 2)).toEqual([2, 3]);
  });

  test("the first picture is thinned out until it is quick to send", () => {
    const shape = [64, 256, 56, 56];
    const part = firstPart(axes(shape), shape, 0);
    expect(partExpression("x", shape, part)).toBe("x[0, :, ::4, ::4]");
    expect(elementsOf(part)).toBe(256 * 14 * 14);
    expect(elementsOf(firstPart(axes([9, 9]), [9, 9], 0))).toBe(81);
    expect(elementsOf(firstPart(axes([100000, 4, 4]), [100000, 4, 4], 99999))).toBe(16);
  });

  test("what is compared with is an expression, too", () => {
    expect(comparedExpression("x", { kind: "step", count: 2, expression: "" })).toBe("(x)@-2");
    expect(comparedExpression("w", { kind: "change", count: 1, expression: "" })).toBe("was(w, 1)");
    expect(
      comparedExpression("w", { kind: "expression", count: 1, expression: " " }),
    ).toBeUndefined();
  });
});

describe("tiles", () => {
  const shape = [1, 10, 8, 12];

  test("are as large as a window lets them be, and all are in it", () => {
    for (const [width, height] of [
      [900, 300],
      [300, 900],
      [500, 500],
    ] as const) {
      const grid = layOut(axes(shape), shape, width, height);
      const camera = overview(grid, width, height);
      expect(grid.across * grid.down).toBeGreaterThanOrEqual(10);
      expect(worldWidth(grid) * camera.scale).toBeLessThanOrEqual(width);
      expect(worldHeight(grid) * camera.scale).toBeLessThanOrEqual(height);
      expect(Number.isInteger(camera.scale)).toBe(true);
    }
  });

  test("a point of the window is the element that is drawn there", () => {
    const grid = layOut(axes(shape), shape, 640, 480);
    const camera = overview(grid, 640, 480);
    for (let tile = 0; tile < 10; tile++) {
      const origin = tileOrigin(grid, tile);
      const x = (origin.x + 11.5 - camera.x) * camera.scale;
      const y = (origin.y + 7.5 - camera.y) * camera.scale;
      expect(spotAt(grid, camera, x, y)).toEqual({ tile, row: 7, column: 11 });
    }
    const origin = tileOrigin(grid, 1);
    expect(spotAt(grid, camera, (origin.x - 0.5) * camera.scale, 1)).toBeUndefined();
  });

  test("zooming keeps what is under the pointer", () => {
    const grid = layOut(axes(shape), shape, 640, 480);
    const camera = overview(grid, 640, 480);
    const near = zoomAt(camera, 3, 100, 60);
    expect(spotAt(grid, near, 100, 60)).toEqual(spotAt(grid, camera, 100, 60));
    expect(near.scale).toBe(camera.scale * 3);
  });

  test("what is out of sight is not asked for, and a small move asks for nothing", () => {
    const large = [1000, 2000];
    const a = axes(large);
    const grid = layOut(a, large, 500, 500);
    const far = visible(a, grid, overview(grid, 500, 500), 500, 500);
    expect(elementsOf(far)).toBeLessThanOrEqual(500 * 500);
    const camera = { scale: 10, x: 700, y: 300 };
    const near = visible(a, grid, camera, 500, 500);
    expect(elementsOf(near)).toBeLessThan(150 * 150);
    expect(near.columns.from).toBeLessThanOrEqual(700);
    expect(near.columns.to).toBeGreaterThanOrEqual(750);
    const exact = { ...near, columns: { ...near.columns, from: 702, to: 752 } };
    expect(covers(near, exact)).toBe(true);
    expect(covers(near, far)).toBe(false);
  });
});

describe("scales", () => {
  const numbers = [Number.NaN, -4, 0, 1, 2, 16, Number.POSITIVE_INFINITY];

  test("leave out what is no number", () => {
    expect(extentOf(numbers)).toEqual({ min: -4, max: 16, least: 1 });
    expect(extentOf([Number.NaN])).toBeUndefined();
    expect(percentiles(numbers, [0, 0.5])).toEqual([-4, 1]);
  });

  test.each([
    ["minmax", { low: -4, high: 16, log: false }],
    ["symmetric", { low: -16, high: 16, log: false }],
    ["log", { low: 1, high: 16, log: true }],
    ["fixed", { low: -1, high: 1, log: false }],
  ] as const)("%s", (mode, scale) => {
    const choice = { mode, over: "shown", low: -1, high: 1 } as const;
    expect(scaleOf(choice, extentOf(numbers), numbers)).toEqual(scale);
  });

  test("places are between 0 and 1, also of the largest numbers there are", () => {
    const place = placer({ low: -4, high: 16, log: false });
    expect([-9, -4, 6, 16, 99].map(place)).toEqual([0, 0, 0.5, 1, 1]);
    const huge = placer({ low: -Number.MAX_VALUE, high: Number.MAX_VALUE, log: false });
    expect([-Number.MAX_VALUE, 0, Number.MAX_VALUE].map(huge)).toEqual([0, 0.5, 1]);
    expect(placer({ low: 3, high: 3, log: false })(3)).toBe(0.5);
    const log = placer({ low: 1, high: 100, log: true });
    expect([0, 1, -10, 100].map(log)).toEqual([0, 0, 0.5, 1]);
  });
});

describe("colours", () => {
  /** Lightness in CIELAB, which knows nothing of how the maps are made. */
  function lightness([r, g, b]: readonly [number, number, number]): number {
    const linear = (c: number) => (c <= 10.31475 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4);
    const y = 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    return y > 0.008856 ? 116 * Math.cbrt(y) - 16 : 903.3 * y;
  }

  test.each(["viola", "grey"] as const)("%s gets evenly lighter", (name) => {
    const found = Array.from({ length: 33 }, (_, k) => lightness(colourAt(name, k / 32)));
    const steps = found.slice(1).map((x, k) => x - (found[k] as number));
    const mean = ((found[32] as number) - (found[0] as number)) / 32;
    expect(mean).toBeGreaterThan(2);
    expect(Math.min(...steps)).toBeGreaterThan(0.3 * mean);
    expect(Math.max(...steps)).toBeLessThan(2 * mean);
  });

  test("the diverging map is lightest in the middle, and its ends are of one lightness", () => {
    const at = (place: number) => lightness(colourAt("diverging", place));
    expect(at(0.5)).toBeGreaterThan(93);
    expect(Math.abs(at(0) - at(1))).toBeLessThan(8);
    expect(at(0.25)).toBeLessThan(at(0.5) - 15);
  });

  test("marks are in no map", () => {
    for (const name of Object.keys(MAPS) as MapName[]) {
      const colours = table(name);
      for (const special of [SPECIAL[1], SPECIAL[2], SPECIAL[3]]) {
        for (let k = 0; k < colours.length; k += 3) {
          const away = [0, 1, 2].map((c) => (colours[k + c] as number) - (special?.[c] as number));
          expect(Math.hypot(...away)).toBeGreaterThan(50);
        }
      }
    }
  });
});

describe("painting", () => {
  const choice = { mode: "minmax", over: "shown", low: 0, high: 0 } as const;
  const pixel = (atlas: { pixels: Uint8ClampedArray; width: number }, x: number, y: number) =>
    Array.from(atlas.pixels.subarray((y * atlas.width + x) * 4, (y * atlas.width + x) * 4 + 4));

  test("each pixel has the colour of its element", () => {
    const shape = [3, 2, 4];
    const part = wholePart(axes(shape), shape);
    const atlas = paint(tensor(shape), part, 3, choice, "viola");
    for (let tile = 0; tile < 3; tile++) {
      for (let row = 0; row < 2; row++) {
        for (let column = 0; column < 4; column++) {
          const x = (tile % atlas.across) * 4 + column;
          const y = Math.floor(tile / atlas.across) * 2 + row;
          const wanted = colourAt("viola", (tile * 8 + row * 4 + column) / 23);
          expect(pixel(atlas, x, y)).toEqual([...wanted, 255]);
        }
      }
    }
  });

  test("each tile has its own scale where that is asked for", () => {
    const shape = [2, 1, 2];
    const values = [0, 1, 100, 300];
    const part = wholePart(axes(shape), shape);
    const atlas = paint(
      tensor(shape, (k) => values[k] as number),
      part,
      3,
      { ...choice, over: "tile" },
      "grey",
    );
    const seen = [0, 1, 2, 3].map((k) => {
      const tile = k >> 1;
      return pixel(atlas, (tile % atlas.across) * 2 + (k & 1), Math.floor(tile / atlas.across))[0];
    });
    expect(seen).toEqual([0, 255, 0, 255]);
  });

  test("three channels are colours", () => {
    const shape = [3, 1, 2];
    const channels = axes(shape, { tiles: -1, colours: 0 });
    const values = [0, 255, 0, 0, 255, 0];
    const atlas = paint(
      tensor(shape, (k) => values[k] as number),
      wholePart(channels, shape),
      3,
      choice,
      "viola",
    );
    expect(pixel(atlas, 0, 0)).toEqual([0, 0, 255, 255]);
    expect(pixel(atlas, 1, 0)).toEqual([255, 0, 0, 255]);
  });

  test("what is no number has its own colours", () => {
    const values = [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 1];
    const atlas = paint(
      tensor([1, 4], (k) => values[k] as number),
      wholePart(axes([1, 4]), [1, 4]),
      2,
      choice,
      "grey",
    );
    expect([0, 1, 2].map((k) => pixel(atlas, k, 0).slice(0, 3))).toEqual([
      SPECIAL[1],
      SPECIAL[2],
      SPECIAL[3],
    ]);
  });

  test("a difference knows how much and how many", () => {
    const a = tensor(
      [5],
      (k) => [1, Number.NaN, Number.NaN, 4, Number.POSITIVE_INFINITY][k] as number,
    );
    const b = tensor([5], (k) => [1, Number.NaN, 3, 8, Number.POSITIVE_INFINITY][k] as number);
    const gap = new Difference(a, b, false);
    expect(Array.from(gap.numbers)).toEqual([0, 0, Number.NaN, -4, 0]);
    expect([gap.most, gap.differing]).toEqual([4, 2]);
    expect(new Difference(a, b, true).numbers[3]).toBe(-0.5);
  });
});
