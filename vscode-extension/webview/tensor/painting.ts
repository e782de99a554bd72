/** From elements to pixels: one pixel an element; what the screen does with them is not known here. */

import type { MapName, ScaleChoice } from "../../shared/tensor/messages";
import { countOf, type Part, stridesOf } from "../../shared/tensor/parts";
import { SPECIAL, table } from "./colours";
import { type Elements, FINITE } from "./elements";
import { type Extent, extentOf, placer, type Scale, scaleOf } from "./scaling";

/** The tiles of a part in a grid without gaps, four bytes a pixel. */
export interface Atlas {
  pixels: Uint8ClampedArray<ArrayBuffer>;
  width: number;
  height: number;
  /** Of one tile. */
  tileWidth: number;
  tileHeight: number;
  across: number;
  /** Of the whole, or of the first tile where each has its own. */
  scale: Scale;
}

/** Numbers of which each has a kind: elements, or what was computed of them. */
export interface Painted {
  readonly numbers: ArrayLike<number>;
  kind(index: number): number;
}

/**
 * Paints a part of a tensor of that rank. `extent` is that of the whole tensor, for scales over it.
 */
export function paint(
  elements: Painted,
  part: Part,
  rank: number,
  choice: ScaleChoice,
  map: MapName,
  extent?: Extent,
): Atlas {
  const tiles = countOf(part.tiles);
  const tileWidth = countOf(part.columns);
  const tileHeight = countOf(part.rows);
  const across = Math.max(1, Math.ceil(Math.sqrt((tiles * tileHeight) / Math.max(tileWidth, 1))));
  const down = Math.ceil(tiles / across);
  const width = across * tileWidth;
  const height = down * tileHeight;
  const pixels = new Uint8ClampedArray(width * height * 4);
  const over = choice.over === "whole" && extent ? extent : extentOf(elements.numbers);
  const common = scaleOf(choice, over, elements.numbers);
  const strides = stridesOf(part, rank);
  let first = common;
  for (let tile = 0; tile < tiles; tile++) {
    const scale =
      choice.over === "tile" ? scaleOfTile(elements, part, strides, tile, choice) : common;
    if (tile === 0) {
      first = scale;
    }
    const at =
      ((Math.floor(tile / across) * tileHeight * width + (tile % across) * tileWidth) * 4) | 0;
    const to = { pixels, at, width, tileWidth, tileHeight };
    if (strides.colours > 0) {
      paintColours(elements, strides, tile, placer(scale), to);
    } else {
      paintTile(elements, strides, tile, placer(scale), table(map), to);
    }
  }
  return { pixels, width, height, tileWidth, tileHeight, across, scale: first };
}

type Strides = ReturnType<typeof stridesOf>;

interface Target {
  pixels: Uint8ClampedArray;
  at: number;
  width: number;
  tileWidth: number;
  tileHeight: number;
}

function scaleOfTile(
  elements: Painted,
  part: Part,
  strides: Strides,
  tile: number,
  choice: ScaleChoice,
): Scale {
  const numbers: number[] = [];
  for (let row = 0; row < countOf(part.rows); row++) {
    for (let column = 0; column < countOf(part.columns); column++) {
      const from = tile * strides.tiles + row * strides.rows + column * strides.columns;
      for (let c = 0; c < (strides.colours ? 3 : 1); c++) {
        numbers.push(elements.numbers[from + c * strides.colours] as number);
      }
    }
  }
  return scaleOf(choice, extentOf(numbers), numbers);
}

function paintTile(
  elements: Painted,
  strides: Strides,
  tile: number,
  place: (x: number) => number,
  colours: Uint8ClampedArray,
  to: Target,
): void {
  const { numbers } = elements;
  for (let row = 0; row < to.tileHeight; row++) {
    let from = tile * strides.tiles + row * strides.rows;
    let at = to.at + row * to.width * 4;
    for (let column = 0; column < to.tileWidth; column++) {
      const x = numbers[from] as number;
      if (x - x === 0) {
        const k = Math.round(place(x) * 255) * 3;
        to.pixels[at] = colours[k] as number;
        to.pixels[at + 1] = colours[k + 1] as number;
        to.pixels[at + 2] = colours[k + 2] as number;
      } else {
        mark(to.pixels, at, elements.kind(from));
      }
      to.pixels[at + 3] = 255;
      at += 4;
      from += strides.columns;
    }
  }
}

function paintColours(
  elements: Painted,
  strides: Strides,
  tile: number,
  place: (x: number) => number,
  to: Target,
): void {
  const { numbers } = elements;
  for (let row = 0; row < to.tileHeight; row++) {
    for (let column = 0; column < to.tileWidth; column++) {
      const from = tile * strides.tiles + row * strides.rows + column * strides.columns;
      const at = to.at + (row * to.width + column) * 4;
      let odd = FINITE as number;
      for (let c = 0; c < 3; c++) {
        const index = from + c * strides.colours;
        const x = numbers[index] as number;
        odd = x - x === 0 ? odd : elements.kind(index);
        to.pixels[at + c] = x - x === 0 ? Math.round(place(x) * 255) : 0;
      }
      if (odd !== FINITE) {
        mark(to.pixels, at, odd);
      }
      to.pixels[at + 3] = 255;
    }
  }
}

function mark(pixels: Uint8ClampedArray, at: number, kind: number): void {
  const colour = SPECIAL[kind];
  if (colour) {
    pixels.set(colour, at);
  }
}

/** Element by element, what two parts of one shape differ in. */
export class Difference implements Painted {
  readonly numbers: Float64Array;
  /** The largest finite magnitude. */
  readonly most: number;
  /** How many differ; NaN and NaN do not. */
  readonly differing: number;

  constructor(a: Elements, b: Elements, relative: boolean) {
    const x = a.numbers;
    const y = b.numbers;
    const n = Math.min(x.length, y.length);
    const found = new Float64Array(n);
    let most = 0;
    let differing = 0;
    for (let k = 0; k < n; k++) {
      const p = x[k] as number;
      const q = y[k] as number;
      const same = p === q || (Number.isNaN(p) && Number.isNaN(q));
      const gap = same ? 0 : p - q;
      found[k] = relative && !same ? gap / Math.abs(q) : gap;
      differing += same ? 0 : 1;
      const size = Math.abs(found[k] as number);
      if (size > most && Number.isFinite(size)) {
        most = size;
      }
    }
    this.numbers = found;
    this.most = most;
    this.differing = differing;
  }

  kind(index: number): number {
    const x = this.numbers[index] as number;
    return Number.isNaN(x) ? 1 : x > 0 ? 2 : 3;
  }
}
