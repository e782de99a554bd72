/** One canvas with the tiles of a tensor: drawing, and what lies under the pointer. */

import { countOf, type Part, stridesOf } from "../../shared/tensor/parts";
import { h, themeColour } from "../dom";
import { SPECIAL } from "./colours";
import { shortText } from "./dtypes";
import { type Elements, FINITE, NAN } from "./elements";
import type { Atlas, Painted } from "./painting";
import { type Camera, type Grid, type Spot, spotAt, tileOrigin } from "./tiles";

/** Of the window, in CSS pixels: where indices are written. */
const MARGIN = { left: 46, top: 20 };
const LABELLED = 40; // CSS pixels of an element from which on its value is written in it
const HATCHED = 5; // device pixels of an element from which on marks have patterns

/** A part that came, and how it is painted. */
export interface Block {
  part: Part;
  rank: number;
  elements: Elements | undefined;
  painted: Painted;
  atlas: Atlas;
  /** The text of an element in it. */
  text: (index: number) => string;
}

export interface Marked {
  spot: Spot;
  label: string;
}

export class Picture {
  readonly canvas: HTMLCanvasElement;
  readonly node: HTMLElement;
  readonly caption: HTMLElement;
  private readonly context: CanvasRenderingContext2D;
  private readonly copy = document.createElement("canvas");
  block: Block | undefined;
  private dpr = 1;

  constructor(name: string) {
    this.canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": name });
    this.caption = h("figcaption", {});
    this.node = h(
      "figure",
      { class: "pane" },
      this.caption,
      h("div", { class: "frame" }, this.canvas),
    );
    this.context = this.canvas.getContext("2d") as CanvasRenderingContext2D;
  }

  /** The room for elements, in device pixels. */
  get room(): { width: number; height: number } {
    const box = (this.canvas.parentElement as HTMLElement).getBoundingClientRect();
    const dpr = window.devicePixelRatio || 1;
    return {
      width: Math.max(1, Math.floor((box.width - MARGIN.left) * dpr) - 2),
      height: Math.max(1, Math.floor((box.height - MARGIN.top) * dpr) - 2),
    };
  }

  show(block: Block | undefined): void {
    this.block = block;
    if (block?.atlas.width && block.atlas.height) {
      const { width, height, pixels } = block.atlas;
      this.copy.width = width;
      this.copy.height = height;
      this.copy.getContext("2d")?.putImageData(new ImageData(pixels, width, height), 0, 0);
    }
  }

  /** The element under a pointer, to the step that is shown. */
  at(grid: Grid, camera: Camera, clientX: number, clientY: number): Spot | undefined {
    const { x, y } = this.point(clientX, clientY);
    if (x < 0 || y < 0) {
      return undefined;
    }
    const spot = spotAt(grid, camera, x, y);
    const part = this.block?.part;
    if (!spot || !part) {
      return spot;
    }
    const snap = (k: number, span: { from: number; step: number }) =>
      span.from + Math.floor((k - span.from) / span.step) * span.step;
    return {
      tile: spot.tile,
      row: snap(spot.row, part.rows),
      column: snap(spot.column, part.columns),
    };
  }

  /** Device pixels from the left top of the elements' room. */
  point(clientX: number, clientY: number): { x: number; y: number } {
    const box = this.canvas.getBoundingClientRect();
    const dpr = window.devicePixelRatio || 1;
    return {
      x: (clientX - box.left - MARGIN.left) * dpr,
      y: (clientY - box.top - MARGIN.top) * dpr,
    };
  }

  /** The number of an element in the block; undefined where it is not in it. */
  indexOf(spot: Spot, colour = 0): number | undefined {
    const block = this.block;
    if (!block) {
      return undefined;
    }
    const { part } = block;
    const strides = stridesOf(part, block.rank);
    const steps = [
      [spot.tile, part.tiles],
      [spot.row, part.rows],
      [spot.column, part.columns],
    ] as const;
    const at: number[] = [];
    for (const [k, span] of steps) {
      const place = (k - span.from) / span.step;
      if (k < span.from || k >= span.to || !Number.isInteger(place)) {
        return undefined;
      }
      at.push(place);
    }
    const [tile = 0, row = 0, column = 0] = at;
    return (
      tile * strides.tiles +
      row * strides.rows +
      column * strides.columns +
      colour * strides.colours
    );
  }

  /** Draws all; `marks` are elements that somebody pointed at. */
  draw(
    grid: Grid,
    camera: Camera,
    marks: readonly Marked[],
    cursor: Spot | undefined,
    nonFinite: readonly Spot[],
  ): void {
    this.resize();
    const { context: g, canvas } = this;
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, canvas.width, canvas.height);
    const left = Math.round(MARGIN.left * this.dpr);
    const top = Math.round(MARGIN.top * this.dpr);
    g.save();
    g.beginPath();
    g.rect(left, top, canvas.width - left, canvas.height - top);
    g.clip();
    g.translate(left, top);
    g.imageSmoothingEnabled = false;
    this.drawTiles(grid, camera);
    this.drawDetails(grid, camera);
    this.drawDots(grid, camera, nonFinite);
    for (const mark of marks) {
      this.outline(grid, camera, mark.spot, mark.label);
    }
    if (cursor) {
      this.outline(grid, camera, cursor, "");
    }
    g.restore();
    if (this.block) {
      this.drawIndices(grid, camera, left, top);
    }
  }

  private resize(): void {
    const box = (this.canvas.parentElement as HTMLElement).getBoundingClientRect();
    this.dpr = window.devicePixelRatio || 1;
    const width = Math.max(1, Math.floor(box.width * this.dpr));
    const height = Math.max(1, Math.floor(box.height * this.dpr));
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
      this.canvas.style.width = `${width / this.dpr}px`;
      this.canvas.style.height = `${height / this.dpr}px`;
    }
  }

  private drawTiles(grid: Grid, camera: Camera): void {
    const block = this.block;
    if (!block?.atlas.width || !block.atlas.height) {
      return;
    }
    const { part, atlas } = block;
    for (let k = 0; k < countOf(part.tiles); k++) {
      const tile = part.tiles.from + k;
      if (tile < grid.first || tile >= grid.first + grid.count) {
        continue;
      }
      const origin = tileOrigin(grid, tile);
      const x = Math.round((origin.x + part.columns.from - camera.x) * camera.scale);
      const y = Math.round((origin.y + part.rows.from - camera.y) * camera.scale);
      const w = Math.round(atlas.tileWidth * part.columns.step * camera.scale);
      const hh = Math.round(atlas.tileHeight * part.rows.step * camera.scale);
      this.context.drawImage(
        this.copy,
        (k % atlas.across) * atlas.tileWidth,
        Math.floor(k / atlas.across) * atlas.tileHeight,
        atlas.tileWidth,
        atlas.tileHeight,
        x,
        y,
        w,
        hh,
      );
    }
  }

  /** What is written into elements that are large: patterns of what is no number, and values. */
  private drawDetails(grid: Grid, camera: Camera): void {
    const block = this.block;
    if (!block || camera.scale < HATCHED) {
      return;
    }
    const { part } = block;
    const strides = stridesOf(part, block.rank);
    const written = camera.scale >= LABELLED * this.dpr;
    const w = this.canvas.width;
    const hh = this.canvas.height;
    const g = this.context;
    g.textAlign = "center";
    g.textBaseline = "middle";
    g.font = `${Math.round(11 * this.dpr)}px ${themeColour("editor-font-family", "monospace")}`;
    for (let k = 0; k < countOf(part.tiles); k++) {
      const origin = tileOrigin(grid, part.tiles.from + k);
      for (let row = 0; row < countOf(part.rows); row++) {
        const y = (origin.y + part.rows.from + row * part.rows.step - camera.y) * camera.scale;
        if (y > hh || y + camera.scale < 0) {
          continue;
        }
        for (let column = 0; column < countOf(part.columns); column++) {
          const x =
            (origin.x + part.columns.from + column * part.columns.step - camera.x) * camera.scale;
          if (x > w || x + camera.scale < 0) {
            continue;
          }
          const index = k * strides.tiles + row * strides.rows + column * strides.columns;
          this.drawNonFinite(block, index, x, y, camera.scale);
          if (written && !strides.colours) {
            this.drawValue(block, index, x, y, camera.scale);
          }
        }
      }
    }
  }

  /** What is no number, where an element is less than a pixel: a dot each. */
  private drawDots(grid: Grid, camera: Camera, nonFinite: readonly Spot[]): void {
    const g = this.context;
    const size = Math.round(4 * this.dpr);
    g.strokeStyle = "#000";
    g.lineWidth = 1;
    g.fillStyle = `rgb(${SPECIAL[NAN]?.join(",")})`;
    for (const spot of nonFinite) {
      if (spot.tile >= grid.first && spot.tile < grid.first + grid.count) {
        const origin = tileOrigin(grid, spot.tile);
        const x = Math.floor((origin.x + spot.column + 0.5 - camera.x) * camera.scale - size / 2);
        const y = Math.floor((origin.y + spot.row + 0.5 - camera.y) * camera.scale - size / 2);
        g.fillRect(x, y, size, size);
        g.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
      }
    }
  }

  private drawNonFinite(block: Block, index: number, x: number, y: number, size: number): void {
    const kind = Number.isFinite(block.painted.numbers[index]) ? FINITE : block.painted.kind(index);
    if (kind !== FINITE) {
      pattern(this.context, kind, Math.round(x), Math.round(y), Math.round(size), this.dpr);
    }
  }

  private drawValue(block: Block, index: number, x: number, y: number, size: number): void {
    const text = shortText(block.text(index));
    const g = this.context;
    g.lineWidth = 3 * this.dpr;
    g.strokeStyle = "rgba(0, 0, 0, 0.75)";
    g.strokeText(text, x + size / 2, y + size / 2, size - 4);
    g.fillStyle = "#fff";
    g.fillText(text, x + size / 2, y + size / 2, size - 4);
  }

  private outline(grid: Grid, camera: Camera, spot: Spot, label: string): void {
    if (spot.tile < grid.first || spot.tile >= grid.first + grid.count) {
      return;
    }
    const origin = tileOrigin(grid, spot.tile);
    const step = this.block?.part.columns.step ?? 1;
    const size = Math.max(camera.scale * step, 5 * this.dpr);
    const middle = (camera.scale * step - size) / 2;
    const x = Math.round((origin.x + spot.column - camera.x) * camera.scale + middle);
    const y = Math.round((origin.y + spot.row - camera.y) * camera.scale + middle);
    const g = this.context;
    const line = Math.max(1, Math.round(this.dpr));
    for (const [colour, out] of [
      ["#000", 2 * line],
      ["#fff", line],
    ] as const) {
      g.strokeStyle = colour;
      g.lineWidth = line;
      g.strokeRect(
        x - out + line / 2,
        y - out + line / 2,
        size + 2 * out - line,
        size + 2 * out - line,
      );
    }
    if (label) {
      g.font = `bold ${Math.round(11 * this.dpr)}px sans-serif`;
      g.textAlign = "left";
      g.textBaseline = "bottom";
      g.lineWidth = 3 * this.dpr;
      g.strokeStyle = "#000";
      g.strokeText(label, x + size + 2 * line, y);
      g.fillStyle = "#fff";
      g.fillText(label, x + size + 2 * line, y);
    }
  }

  /** Indices along the left and the top: of tiles; inside of those that are large, of elements. */
  private drawIndices(grid: Grid, camera: Camera, left: number, top: number): void {
    const g = this.context;
    g.fillStyle = themeColour("descriptionForeground", "#888");
    g.font = `${Math.round(10 * this.dpr)}px ${themeColour("font-family", "sans-serif")}`;
    const several = grid.count > 1;
    g.textBaseline = "bottom";
    g.textAlign = "center";
    const across = { size: grid.width, gap: grid.gap, count: Math.min(grid.across, grid.count) };
    this.along(across, camera.x, camera.scale, this.canvas.width - left, 34, (k, at, inside) => {
      g.fillText(several && !inside ? `+${k}` : String(k), left + at, top - 4 * this.dpr);
    });
    g.textBaseline = "middle";
    g.textAlign = "right";
    const down = { size: grid.height, gap: grid.gap, count: grid.down };
    this.along(down, camera.y, camera.scale, this.canvas.height - top, 16, (k, at, inside) => {
      const index = several && !inside ? grid.first + k * grid.across : k;
      g.fillText(String(index), left - 6 * this.dpr, top + at);
    });
  }

  /** Calls `write` with an index and the middle of what it stands for, in pixels. */
  private along(
    tiles: { size: number; gap: number; count: number },
    from: number,
    scale: number,
    length: number,
    apart: number,
    write: (index: number, at: number, inside: boolean) => void,
  ): void {
    const pitch = tiles.size + tiles.gap;
    const inside = tiles.count === 1 || tiles.size * scale > length * 0.6;
    const unit = inside ? 1 : pitch;
    if (!(unit * scale > 0)) {
      return; // no element
    }
    const every = niceStep((apart * this.dpr) / (unit * scale));
    const middle = (inside ? scale : tiles.size * scale) / 2;
    const firstTile = inside ? Math.max(0, Math.floor(from / pitch)) : 0;
    const lastTile = inside
      ? Math.min(tiles.count - 1, Math.floor((from + length / scale) / pitch))
      : 0;
    for (let tile = firstTile; tile <= lastTile; tile++) {
      const count = inside ? tiles.size : tiles.count;
      const begin = from - tile * pitch;
      const first = Math.max(0, Math.ceil(begin / unit / every - 1) * every);
      for (let k = first; k < count; k += every) {
        const at = (k * unit - begin) * scale + middle;
        if (at >= 0 && at <= length) {
          write(k, at, inside);
        }
      }
    }
  }
}

/** 1, 2, 5, 10, 20 …: the first that is no smaller. */
function niceStep(least: number): number {
  let unit = 1;
  for (;;) {
    for (const k of [1, 2, 5]) {
      if (k * unit >= least) {
        return k * unit;
      }
    }
    unit *= 10;
  }
}

/** Marks are told apart without colours, too: hatched, a plus, a minus, a chequer. */
export function pattern(
  g: CanvasRenderingContext2D,
  kind: number,
  x: number,
  y: number,
  size: number,
  dpr: number,
): void {
  const colour = SPECIAL[kind];
  if (!colour) {
    return;
  }
  g.save();
  g.beginPath();
  g.rect(x, y, size, size);
  g.clip();
  g.fillStyle = `rgb(${colour.join(",")})`;
  g.fillRect(x, y, size, size);
  g.strokeStyle = g.fillStyle = kind === 4 ? "#e8e8e8" : "#000";
  g.lineWidth = Math.max(1, Math.round(dpr));
  g.beginPath();
  if (kind === 1) {
    for (let k = -size; k < size; k += Math.max(4, size / 4)) {
      g.moveTo(x + k, y + size);
      g.lineTo(x + k + size, y);
    }
  } else if (kind === 4) {
    const half = size / 2;
    g.fillRect(x, y, half, half);
    g.fillRect(x + half, y + half, half, half);
  } else {
    g.moveTo(x + size / 4, y + size / 2);
    g.lineTo(x + (3 * size) / 4, y + size / 2);
    if (kind === 2) {
      g.moveTo(x + size / 2, y + size / 4);
      g.lineTo(x + size / 2, y + (3 * size) / 4);
    }
  }
  g.stroke();
  g.restore();
}
