/** The picture view: one pane, or three (now, earlier, difference) that move together. */

import { messageOf } from "../../shared/errors";
import { sizeOf } from "../../shared/tensor/axes";
import type { MapName, Slice } from "../../shared/tensor/messages";
import { type Part, partExpression, placeOf } from "../../shared/tensor/parts";
import { fill, h } from "../dom";
import { type Connection, LatestOnly, Outdated } from "./connection";
import { formatNumber } from "./dom";
import type { Elements } from "./elements";
import { legend } from "./legend";
import type { Model } from "./model";
import { nonFiniteSpots } from "./nonfiniteSpots";
import { Difference, paint } from "./painting";
import { type Block, type Marked, Picture } from "./picture";
import type { Scale } from "./scaling";
import {
  type Camera,
  covers,
  type Grid,
  layOut,
  overview,
  type Spot,
  spotAt,
  tileOrigin,
  visible,
  zoomAt,
} from "./tiles";

/** Events of the pictures. */
interface Listener {
  hovered(place: number[] | undefined): void;
  chosen(place: number[]): void;
  pinned(place: number[]): void;
  edited(place: number[]): void;
  failed(text: string): void;
  painted(): void;
}

export class Pictures {
  readonly node = h("div", { class: "panes" });
  readonly now = new Picture("The tensor");
  readonly before = new Picture("Comparison");
  readonly gap = new Picture("The difference");
  grid: Grid = { count: 1, first: 0, width: 1, height: 1, across: 1, down: 1, gap: 0 };
  camera: Camera = { scale: 1, x: 0, y: 0 };
  private free = false; // somebody zoomed or moved: the camera stays
  private parts: { now?: Slice; before?: Slice; part?: Part; turn?: number; earlier?: string } = {};
  private readonly newest = new LatestOnly();
  private drag: { x: number; y: number; camera: Camera; moved: boolean } | undefined;
  private frame = 0;
  private gapNote = "";
  private nonFinite: Spot[] = [];
  private beforeNote = "";

  constructor(
    private readonly model: Model,
    private readonly connection: Connection,
    private readonly listener: Listener,
  ) {
    for (const pane of [this.now, this.before, this.gap]) {
      this.listen(pane);
    }
    this.node.append(this.now.node);
  }

  /** The panes that are there. */
  get panes(): Picture[] {
    return this.model.earlier ? [this.now, this.before, this.gap] : [this.now];
  }

  /** Other axes, another window, another tensor: tiles are laid out anew. */
  layOut(): void {
    const panes = this.panes;
    const there = [...this.node.children];
    if (there.length !== panes.length || panes.some((p, k) => p.node !== there[k])) {
      fill(this.node, ...panes.map((p) => p.node)); // what is put in anew loses the focus
    }
    this.node.classList.toggle("several", panes.length > 1);
    if (!this.model.type) {
      return; // what was shown last stays
    }
    const { width, height } = this.now.room;
    const { axes, shape, view } = this.model;
    this.grid = layOut(axes, shape, width, height, view.firstTile);
    if (!this.free) {
      this.camera = overview(this.grid, width, height);
    }
  }

  fit(): void {
    this.free = false;
    this.layOut();
    this.want();
    this.redraw();
  }

  /** Asks for what is in sight, if it is not there. */
  want(): void {
    this.newest.run(() => this.fetch());
  }

  /** A part that came before it was asked for. */
  take(slice: Slice, part: Part): void {
    this.parts = { now: slice, part, turn: this.model.location?.turn };
    this.paint();
  }

  private async fetch(): Promise<void> {
    const { model } = this;
    const turn = model.location?.turn;
    const { width, height } = this.now.room;
    if (!model.type || model.state === "ended") {
      return;
    }
    const part = visible(model.axes, this.grid, this.camera, width, height);
    const { earlier } = model;
    const there = this.parts;
    const fresh = there.turn === turn && there.part && covers(there.part, part);
    if (fresh && there.earlier === earlier) {
      return;
    }
    const { expression } = model.subject;
    const ask = (of: string) =>
      this.connection.call("slice", { expression: partExpression(of, model.shape, part) });
    try {
      const now = fresh && there.now && sameSteps(there.part, part) ? there.now : undefined;
      const target = now ? (there.part as Part) : part;
      const askNow = now ?? ask(expression);
      const askBefore = earlier
        ? this.connection.call("slice", {
            expression: partExpression(earlier, model.shape, target),
          })
        : undefined;
      const [a, b] = await Promise.all([askNow, askBefore?.catch((e: Error) => e)]);
      if (b instanceof Outdated) {
        throw b;
      }
      this.parts = {
        now: a,
        part: target,
        turn,
        earlier,
        before: b instanceof Error ? undefined : b,
      };
      this.beforeNote = b instanceof Error ? b.message : "";
      model.error = "";
      this.nonFinite = [];
      this.paint();
      if (target.rows.step > 1 || target.columns.step > 1) {
        this.nonFinite = await nonFiniteSpots(model, this.connection, target);
        this.redraw();
      }
    } catch (error) {
      if (!(error instanceof Outdated)) {
        this.listener.failed(messageOf(error));
      }
    }
  }

  /** Paints what is there: after it came, or in other colours. */
  paint(): void {
    const { now, before, part } = this.parts;
    if (!now || !part || !this.model.type) {
      return;
    }
    const { model } = this;
    const rank = model.shape.length;
    const a = model.elements(now);
    const { scale, map, difference } = model.view;
    this.now.show(this.block(a, part, rank, map));
    if (model.earlier) {
      const b = before && same(before.shape, now.shape) ? model.elements(before) : undefined;
      const common = this.now.block?.atlas.scale;
      const likeNow =
        common && !common.log && scale.over !== "tile"
          ? { ...scale, mode: "fixed" as const, low: common.low, high: common.high }
          : scale;
      this.before.show(b && { ...this.block(b, part, rank, map, likeNow) });
      const gap = b && new Difference(a, b, difference === "relative");
      this.gap.show(gap && this.difference(gap, part, rank));
      this.gapNote = gap ? this.gapText(gap) : "different shape, or not available";
    }
    this.captions();
    this.redraw();
  }

  private gapText(gap: Difference): string {
    const what =
      this.model.view.difference === "relative" ? "relative to the earlier one" : "now − earlier";
    const many = `${formatNumber(gap.differing)} of ${formatNumber(gap.numbers.length)}`;
    return `${what}: at most ${formatNumber(gap.most)}, ${many} differ`;
  }

  private block(
    elements: Elements,
    part: Part,
    rank: number,
    map: MapName,
    choice = this.model.view.scale,
  ): Block {
    const atlas = paint(elements, part, rank, choice, map, this.model.extent);
    return { part, rank, elements, painted: elements, atlas, text: (k) => elements.text(k) };
  }

  private difference(gap: Difference, part: Part, rank: number): Block {
    const flat = { ...part, axes: part.axes };
    const choice = { mode: "symmetric", over: "shown", low: 0, high: 0 } as const;
    const atlas = paint(gap, flat, rank, choice, "diverging");
    const text = (k: number) => formatNumber(gap.numbers[k]);
    return { part, rank, elements: undefined, painted: gap, atlas, text };
  }

  private captions(): void {
    const { model } = this;
    const several = this.panes.length > 1;
    const legendOf = (scale: Scale | undefined, map: MapName, colours = model.axes.colours >= 0) =>
      scale && legend(scale, map, colours);
    const each = model.view.scale.over === "tile" ? " (first tile)" : "";
    fill(
      this.now.caption,
      several && h("b", {}, "now"),
      legendOf(this.now.block?.atlas.scale, model.view.map),
      each,
    );
    if (several) {
      const block = this.before.block;
      fill(
        this.before.caption,
        h("b", {}, model.earlier),
        block && legendOf(block.atlas.scale, model.view.map),
        h("span", { class: "trouble" }, this.beforeNote),
      );
      fill(
        this.gap.caption,
        h("b", {}, "difference"),
        this.gap.block && legendOf(this.gap.block.atlas.scale, "diverging", false),
        h("span", { title: this.gapNote }, this.gapNote),
      );
    }
  }

  /** Draws at the next frame. */
  redraw(): void {
    if (!this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.drawNow();
      });
    }
  }

  private drawNow(): void {
    const { model } = this;
    const marks: Marked[] = [];
    model.pins.forEach((pin, k) => {
      const spot = this.spotOf(pin.place);
      if (spot) {
        marks.push({ spot, label: String(k + 1) });
      }
    });
    const cursor = model.cursor && this.spotOf(model.cursor);
    for (const pane of this.panes) {
      pane.draw(this.grid, this.camera, marks, cursor, pane === this.now ? this.nonFinite : []);
    }
    const block = this.now.block;
    if (block) {
      // What is drawn, for who waits for it: the stop, and how far elements are thinned out.
      this.node.dataset.drawn = `${this.parts.turn}:${block.part.columns.step}`;
      this.listener.painted();
    }
  }

  // --- places ---

  /** Where a place is seen; undefined where other axes stand elsewhere. */
  spotOf(place: readonly number[]): Spot | undefined {
    const { axes } = this.model;
    const shownAxes = [axes.rows, axes.columns, axes.tiles, axes.colours];
    const elsewhere = axes.at.some((k, axis) => !shownAxes.includes(axis) && place[axis] !== k);
    if (elsewhere || place.length !== axes.at.length) {
      return undefined;
    }
    const at = (axis: number) => (axis < 0 ? 0 : (place[axis] as number));
    return { tile: at(axes.tiles), row: at(axes.rows), column: at(axes.columns) };
  }

  /** Brings a place into sight; where elements are tiny, nearer. */
  goTo(place: readonly number[]): void {
    const spot = this.spotOf(place);
    if (!spot) {
      return;
    }
    const { width, height } = this.now.room;
    const origin = tileOrigin(this.grid, spot.tile);
    const x = origin.x + spot.column + 0.5;
    const y = origin.y + spot.row + 0.5;
    const px = (x - this.camera.x) * this.camera.scale;
    const py = (y - this.camera.y) * this.camera.scale;
    if (this.camera.scale < 2 || px < 0 || py < 0 || px > width || py > height) {
      const scale = Math.max(this.camera.scale, 4);
      this.camera = { scale, x: x - width / scale / 2, y: y - height / scale / 2 };
      this.free = true;
    }
    this.want();
    this.redraw();
  }

  /** Exact texts of a place in each pane. */
  textsAt(spot: Spot): string[] {
    const colours = this.model.axes.colours >= 0 ? [0, 1, 2] : [0];
    return this.panes.map((pane) => {
      const found = colours.map((c) => {
        const index = pane.indexOf(spot, c);
        return index === undefined ? "…" : (pane.block?.text(index) ?? "");
      });
      return found.length > 1 ? `(${found.join(", ")})` : (found[0] ?? "");
    });
  }

  placeAt(spot: Spot): number[] {
    const place = placeOf(this.model.axes, spot.tile, spot.row, spot.column);
    return place;
  }

  // --- pointer and keys ---

  private listen(pane: Picture): void {
    const { canvas } = pane;
    canvas.addEventListener("pointermove", (e) => this.moved(pane, e));
    canvas.addEventListener("pointerleave", () => this.listener.hovered(undefined));
    canvas.addEventListener("pointerdown", (e) => {
      canvas.setPointerCapture(e.pointerId);
      this.drag = { x: e.clientX, y: e.clientY, camera: this.camera, moved: false };
    });
    canvas.addEventListener("pointerup", (e) => this.released(pane, e));
    canvas.addEventListener("dblclick", () => this.fit());
    canvas.addEventListener("keydown", (e) => this.key(e));
    canvas.addEventListener(
      "wheel",
      (e) => {
        e.preventDefault();
        const { x, y } = pane.point(e.clientX, e.clientY);
        this.zoom(1.0018 ** -(e.deltaY * (e.deltaMode ? 20 : 1)), x, y);
      },
      { passive: false },
    );
  }

  private zoom(factor: number, x: number, y: number): void {
    this.camera = zoomAt(this.camera, factor, x, y);
    this.free = true;
    this.want();
    this.redraw();
  }

  private moved(pane: Picture, e: PointerEvent): void {
    const drag = this.drag;
    if (drag && e.buttons) {
      const dpr = window.devicePixelRatio || 1;
      const dx = (e.clientX - drag.x) * dpr;
      const dy = (e.clientY - drag.y) * dpr;
      if (drag.moved || Math.hypot(dx, dy) > 4) {
        drag.moved = true;
        const { scale } = drag.camera;
        this.camera = { scale, x: drag.camera.x - dx / scale, y: drag.camera.y - dy / scale };
        this.free = true;
        this.want();
        this.redraw();
      }
      return;
    }
    const spot = pane.at(this.grid, this.camera, e.clientX, e.clientY);
    this.listener.hovered(spot && this.placeAt(spot));
  }

  private released(pane: Picture, e: PointerEvent): void {
    const drag = this.drag;
    this.drag = undefined;
    const spot = pane.at(this.grid, this.camera, e.clientX, e.clientY);
    if (drag && !drag.moved && spot) {
      this.model.cursor = this.placeAt(spot); // keys go on from there
      this.listener.pinned(this.model.cursor);
    }
  }

  private key(e: KeyboardEvent): void {
    const { width, height } = this.now.room;
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[
      e.key
    ];
    if (step) {
      this.step(step[0] as number, step[1] as number);
    } else if (e.key === "+" || e.key === "=") {
      this.zoom(1.5, width / 2, height / 2);
    } else if (e.key === "-") {
      this.zoom(1 / 1.5, width / 2, height / 2);
    } else if (e.key === "0") {
      this.fit();
    } else if (e.key === "Enter" && this.model.cursor) {
      this.listener.pinned(this.model.cursor);
    } else if (e.key === "F2" && this.model.cursor) {
      this.listener.edited(this.model.cursor);
    } else {
      return;
    }
    e.preventDefault();
  }

  /** Moves the cursor by an element that is drawn. */
  private step(down: number, right: number): void {
    const { width, height } = this.now.room;
    const { model, grid } = this;
    const at = (model.cursor && this.spotOf(model.cursor)) ??
      spotAt(grid, this.camera, width / 2, height / 2) ?? { tile: grid.first, row: 0, column: 0 };
    const by = this.parts.part?.rows.step ?? 1;
    const row = at.row + down * by;
    const column = at.column + right * by;
    let { tile } = at;
    if (row < 0 || row >= grid.height) {
      tile += Math.sign(down) * grid.across;
    } else if (column < 0 || column >= grid.width) {
      tile += Math.sign(right);
    }
    const last = sizeOf(model.shape, model.axes.tiles) - 1;
    tile = Math.max(0, Math.min(tile, last));
    const wrap = (k: number, n: number) => ((k % n) + n) % n;
    this.listener.chosen(
      this.placeAt({ tile, row: wrap(row, grid.height), column: wrap(column, grid.width) }),
    );
  }
}

function same(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((n, k) => n === b[k]);
}

function sameSteps(a: Part | undefined, b: Part): boolean {
  return a?.rows.step === b.rows.step && a.columns.step === b.columns.step;
}
