/** The layout of tiles in a window, and what of them is in sight. */

import { type Axes, MOST_TILES, sizeOf } from "../../shared/tensor/axes";
import { countOf, type Part, type Span } from "../../shared/tensor/parts";

/** Tiles in a grid. All lengths are in elements: one is as wide as a column. */
export interface Grid {
  /** How many loaded are, from which on. */
  count: number;
  first: number;
  width: number;
  height: number;
  across: number;
  down: number;
  gap: number;
}

/** Which part of the world is seen: `scale` device pixels an element, `x`, `y` at the left top. */
export interface Camera {
  scale: number;
  x: number;
  y: number;
}

const GAP = 2; // pixels at least

/** The grid that makes tiles largest in a window of that many pixels. */
export function layOut(
  axes: Axes,
  shape: readonly number[],
  width: number,
  height: number,
  first = 0,
): Grid {
  const total = sizeOf(shape, axes.tiles);
  const from = Math.max(0, Math.min(first, total - 1));
  const count = Math.min(total - from, MOST_TILES);
  const w = sizeOf(shape, axes.columns);
  const h = sizeOf(shape, axes.rows);
  const large = bestAcross(
    count,
    w,
    h,
    count > 1 ? Math.max(1, Math.round(Math.max(w, h) / 24)) : 0,
  );
  const loose = large(width, height);
  // Where an element is less than a pixel the gap is still to be seen.
  const gap = count > 1 ? Math.max(loose.gap, Math.ceil(GAP / loose.scale)) : 0;
  const best = gap > loose.gap ? bestAcross(count, w, h, gap)(width, height) : loose;
  const down = Math.max(1, Math.ceil(count / best.across));
  // Tiles begin at whole pixels, so that all gaps are drawn alike.
  const step = best.scale < 1 ? Math.ceil(1 / best.scale) : 1;
  const even = count > 1 ? gap + ((step - ((w + gap) % step)) % step) : 0;
  return { count, first: from, width: w, height: h, across: best.across, down, gap: even };
}

/** The columns that leave tiles the most room. */
function bestAcross(count: number, w: number, h: number, gap: number) {
  return (width: number, height: number) => {
    let best = { across: 1, scale: -1, gap };
    for (let across = 1; across <= Math.max(count, 1); across++) {
      const down = Math.ceil(count / across);
      const scale = Math.min(width / (across * (w + gap) - gap), height / (down * (h + gap) - gap));
      if (scale > best.scale) {
        best = { across, scale, gap };
      }
    }
    return best;
  };
}

export function worldWidth(grid: Grid): number {
  return grid.across * (grid.width + grid.gap) - grid.gap;
}

export function worldHeight(grid: Grid): number {
  return grid.down * (grid.height + grid.gap) - grid.gap;
}

/** All of it: whole pixels an element, or whole elements a pixel, so that all are of one size. */
export function overview(grid: Grid, width: number, height: number): Camera {
  const w = Math.max(worldWidth(grid), 1);
  const h = Math.max(worldHeight(grid), 1);
  const room = Math.min(width / w, height / h);
  const scale =
    room >= 1 ? Math.min(Math.floor(room), 96) : 1 / Math.ceil(1 / Math.max(room, 1e-6));
  return { scale, x: 0, y: 0 };
}

/** Zooms about a point of the window. */
export function zoomAt(camera: Camera, factor: number, px: number, py: number): Camera {
  const scale = Math.max(1 / 256, Math.min(camera.scale * factor, 256));
  return {
    scale,
    x: camera.x + px / camera.scale - px / scale,
    y: camera.y + py / camera.scale - py / scale,
  };
}

/** The left top of a tile. */
export function tileOrigin(grid: Grid, tile: number): { x: number; y: number } {
  const k = tile - grid.first;
  return {
    x: (k % grid.across) * (grid.width + grid.gap),
    y: Math.floor(k / grid.across) * (grid.height + grid.gap),
  };
}

export interface Spot {
  tile: number;
  row: number;
  column: number;
}

/** What lies at a point of the window; undefined in gaps and beside the tiles. */
export function spotAt(grid: Grid, camera: Camera, px: number, py: number): Spot | undefined {
  const x = camera.x + px / camera.scale;
  const y = camera.y + py / camera.scale;
  const across = Math.floor(x / (grid.width + grid.gap));
  const down = Math.floor(y / (grid.height + grid.gap));
  if (across < 0 || across >= grid.across || down < 0) {
    return undefined;
  }
  const k = down * grid.across + across;
  const column = Math.floor(x - across * (grid.width + grid.gap));
  const row = Math.floor(y - down * (grid.height + grid.gap));
  if (k >= grid.count || column >= grid.width || row >= grid.height) {
    return undefined;
  }
  return { tile: grid.first + k, row, column };
}

/** The part that is in sight, thinned out where loaded are more elements than pixels. */
export function visible(
  axes: Axes,
  grid: Grid,
  camera: Camera,
  width: number,
  height: number,
): Part {
  const step = Math.max(1, Math.floor(1 / camera.scale + 1e-9));
  const right = camera.x + width / camera.scale;
  const bottom = camera.y + height / camera.scale;
  const across = cells(camera.x, right, grid.width + grid.gap, grid.across);
  const down = cells(camera.y, bottom, grid.height + grid.gap, grid.down);
  const first = down.from * grid.across + (down.to - down.from === 1 ? across.from : 0);
  const last =
    down.to - down.from === 1 ? down.from * grid.across + across.to : down.to * grid.across;
  const tiles: Span = {
    from: grid.first + Math.min(first, grid.count),
    to: grid.first + Math.min(last, grid.count),
    step: 1,
  };
  const left = across.from * (grid.width + grid.gap);
  const top = down.from * (grid.height + grid.gap);
  const columns =
    across.to - across.from === 1
      ? paddedSpan(camera.x - left, right - left, grid.width, step)
      : { from: 0, to: grid.width, step };
  const rows =
    down.to - down.from === 1
      ? paddedSpan(camera.y - top, bottom - top, grid.height, step)
      : { from: 0, to: grid.height, step };
  return { axes, tiles, rows, columns };
}

function cells(low: number, high: number, pitch: number, count: number): Span {
  const from = Math.max(0, Math.min(Math.floor(low / pitch), count - 1));
  const to = Math.max(from + 1, Math.min(Math.ceil(high / pitch), count));
  return { from, to, step: 1 };
}

/** A margin is asked for, too, and ends lie on a coarse raster: a small move asks for nothing. */
function paddedSpan(low: number, high: number, size: number, step: number): Span {
  const margin = (high - low) / 4;
  const raster = step * 32;
  const from = Math.max(0, Math.floor((low - margin) / raster) * raster);
  const to = Math.min(size, Math.ceil((high + margin) / raster) * raster);
  return { from: Math.min(from, Math.max(0, size - 1)), to: Math.max(to, Math.min(size, 1)), step };
}

/** Whether a part that is loaded has all that is needed. */
export function covers(loaded: Part, needed: Part): boolean {
  const same = JSON.stringify(loaded.axes) === JSON.stringify(needed.axes);
  return same && (["tiles", "rows", "columns"] as const).every((k) => within(needed[k], loaded[k]));
}

function within(inner: Span, outer: Span): boolean {
  return (
    countOf(inner) === 0 ||
    (inner.from >= outer.from && inner.to <= outer.to && inner.step === outer.step)
  );
}
