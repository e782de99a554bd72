/** The table view: exact values of a plane of the tensor; only cells that are in sight exist. */

import { messageOf } from "../../shared/errors";
import { aligned, widthBehind } from "../../shared/format";
import { sizeOf } from "../../shared/tensor/axes";
import { elementExpression, type Part, partExpression, placeOf } from "../../shared/tensor/parts";
import { fill, h } from "../dom";
import { type Connection, LatestOnly, Outdated } from "./connection";
import { type Elements, FINITE } from "./elements";
import type { Model } from "./model";

const CELL = { width: 112, height: 22, head: 64 };
const MARGIN = 16; // rows and columns that are asked for beyond what is seen
const MOST_CHARACTERS = 13; // of a cell
const TALLEST = 8_000_000; // CSS pixels that a browser scrolls over

export class Table {
  private readonly cells = h("div", { class: "cells" });
  private readonly scroller = h("div", {
    class: "scroller",
    tabindex: 0,
    role: "grid",
    "aria-label": "Elements",
  });
  readonly node = h("div", { class: "table" }, this.scroller);
  private readonly newest = new LatestOnly();
  private there:
    | { part: Part; elements: Elements; turn: number | undefined; key: string }
    | undefined;
  private at = { row: 0, column: 0 };
  private editing: HTMLInputElement | undefined;
  private frame = 0;
  private readonly kinds = ["", "nan", "posinf", "neginf", "unwritten"];

  constructor(
    private readonly model: Model,
    private readonly connection: Connection,
    private readonly listener: {
      chosen(place: number[]): void;
      failed(text: string): void;
    },
  ) {
    this.scroller.append(this.cells);
    this.scroller.addEventListener("scroll", () => this.want());
    this.scroller.addEventListener("keydown", (e) => this.key(e));
    this.scroller.addEventListener("pointerdown", (e) => this.pressed(e));
    this.scroller.addEventListener("dblclick", (e) => {
      this.pressed(e);
      this.edit();
    });
  }

  get rows(): number {
    return this.model.type ? sizeOf(this.model.shape, this.model.axes.rows) : 0;
  }

  get columns(): number {
    return this.model.type ? sizeOf(this.model.shape, this.model.axes.columns) : 0;
  }

  /** Lays it out for another tensor, or other axes. */
  update(): void {
    this.at.row = Math.min(this.at.row, Math.max(0, this.rows - 1));
    this.at.column = Math.min(this.at.column, Math.max(0, this.columns - 1));
    this.cells.style.width = `${CELL.head + this.columns * CELL.width}px`;
    this.cells.style.height = `${Math.min((this.rows + 1) * CELL.height, TALLEST)}px`;
    this.scroller.setAttribute("aria-rowcount", String(this.rows + 1));
    this.scroller.setAttribute("aria-colcount", String(this.columns + 1));
    this.want();
  }

  /** Asks for what is in sight, and draws what is there. */
  want(): void {
    this.draw();
    this.newest.run(() => this.fetch());
  }

  goTo(place: readonly number[]): void {
    const { axes } = this.model;
    this.at = {
      row: axes.rows < 0 ? 0 : (place[axes.rows] ?? 0),
      column: axes.columns < 0 ? 0 : (place[axes.columns] ?? 0),
    };
    this.reveal();
    this.want();
  }

  /** Rows and columns in sight. */
  private window(): { top: number; bottom: number; left: number; right: number } {
    const { scrollLeft, clientWidth, clientHeight } = this.scroller;
    const top = Math.min(this.topRow(), Math.max(0, this.rows - 1));
    const count = Math.ceil(clientHeight / CELL.height) + 1;
    const left = Math.floor(scrollLeft / CELL.width);
    const across = Math.ceil(clientWidth / CELL.width) + 1;
    return {
      top,
      bottom: Math.min(this.rows, top + count),
      left,
      right: Math.min(this.columns, left + across),
    };
  }

  /** Where rows are more than a browser can scroll over, a pixel of the bar is several rows. */
  private topRow(): number {
    const { scrollTop, clientHeight } = this.scroller;
    if ((this.rows + 1) * CELL.height <= TALLEST) {
      return Math.floor(scrollTop / CELL.height);
    }
    const seen = Math.floor(clientHeight / CELL.height) - 1;
    return Math.round((scrollTop / (TALLEST - clientHeight)) * (this.rows - seen));
  }

  private async fetch(): Promise<void> {
    const { model } = this;
    const turn = model.location?.turn;
    if (!model.type || model.state === "ended" || !this.rows || !this.columns) {
      return;
    }
    const key = `${model.subject.expression} ${JSON.stringify(model.axes)}`;
    const w = this.window();
    const there = this.there;
    const has = there?.turn === turn && there?.key === key && inside(w, there.part);
    if (has) {
      return;
    }
    const span = (from: number, to: number, size: number) => ({
      from: Math.max(0, from - MARGIN),
      to: Math.min(size, to + MARGIN),
      step: 1,
    });
    const axes = { ...model.axes, tiles: -1, colours: -1 };
    const part: Part = {
      axes,
      tiles: { from: 0, to: 1, step: 1 },
      rows: span(w.top, w.bottom, this.rows),
      columns: span(w.left, w.right, this.columns),
    };
    try {
      const expression = partExpression(model.subject.expression, model.shape, part);
      const slice = await this.connection.call("slice", { expression });
      this.there = { part, elements: model.elements(slice), turn, key };
      this.draw();
    } catch (error) {
      if (!(error instanceof Outdated)) {
        this.listener.failed(messageOf(error));
      }
    }
  }

  private draw(): void {
    if (!this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.drawNow();
      });
    }
  }

  private drawNow(): void {
    if (this.editing) {
      return;
    }
    const w = this.window();
    const { scrollTop, scrollLeft } = this.scroller;
    const cells: HTMLElement[] = [];
    const low =
      (this.rows + 1) * CELL.height <= TALLEST ? scrollTop - (scrollTop % CELL.height) : scrollTop;
    for (let column = w.left; column < w.right; column++) {
      const x = CELL.head + column * CELL.width;
      cells.push(
        cell("columnheader", x, scrollTop, CELL.width, String(column), {
          "aria-colindex": column + 2,
        }),
      );
    }
    const behind: number[] = [];
    for (let column = w.left; column < w.right; column++) {
      behind.push(this.behind(column));
    }
    for (let row = w.top; row < w.bottom; row++) {
      const y = low + (row - w.top + 1) * CELL.height;
      cells.push(this.row(row, y, w.left, scrollLeft, behind));
    }
    cells.push(cell("columnheader", scrollLeft, scrollTop, CELL.head, "", {}, "corner"));
    fill(this.cells, ...cells);
  }

  /** How much stands behind the points of a column, in the rows in sight. */
  private behind(column: number): number {
    const { top, bottom } = this.window();
    let most = 0;
    for (let row = top; row < bottom; row++) {
      const index = this.indexOf(row, column);
      const text = index === undefined ? "" : (this.there?.elements.text(index) ?? "");
      most = Math.max(most, widthBehind(text));
    }
    return most;
  }

  private row(row: number, y: number, from: number, left: number, behind: number[]): HTMLElement {
    const cells: HTMLElement[] = [];
    for (let column = from; column < from + behind.length; column++) {
      const index = this.indexOf(row, column);
      const elements = this.there?.elements;
      const text = index === undefined || !elements ? "…" : elements.text(index);
      const kind = index === undefined || !elements ? FINITE : elements.kind(index);
      const chosen = row === this.at.row && column === this.at.column;
      cells.push(
        cell(
          "gridcell",
          CELL.head + column * CELL.width,
          0,
          CELL.width,
          shortEnough(aligned(text, behind[column - from] ?? 0), text),
          { "aria-colindex": column + 2, "aria-selected": String(chosen), title: text },
          `${this.kinds[kind]} ${chosen ? "chosen" : ""}`,
        ),
      );
    }
    cells.push(cell("rowheader", left, 0, CELL.head, String(row), { "aria-colindex": 1 }));
    const node = h("div", { role: "row", class: "row", "aria-rowindex": row + 2 }, ...cells);
    node.style.transform = `translateY(${y}px)`;
    return node;
  }

  private indexOf(row: number, column: number): number | undefined {
    const part = this.there?.part;
    if (
      !part ||
      this.there?.key !== `${this.model.subject.expression} ${JSON.stringify(this.model.axes)}`
    ) {
      return undefined;
    }
    const { rows, columns, axes } = part;
    if (row < rows.from || row >= rows.to || column < columns.from || column >= columns.to) {
      return undefined;
    }
    const r = row - rows.from;
    const c = column - columns.from;
    return axes.rows > axes.columns
      ? c * (rows.to - rows.from) + r
      : r * (columns.to - columns.from) + c;
  }

  private place(): number[] {
    return placeOf({ ...this.model.axes, tiles: -1, colours: -1 }, 0, this.at.row, this.at.column);
  }

  // --- choosing and editing ---

  private pressed(e: MouseEvent): void {
    if ((e.target as Element).closest("input")) {
      return;
    }
    const box = this.scroller.getBoundingClientRect();
    const x = e.clientX - box.left + this.scroller.scrollLeft - CELL.head;
    const y = e.clientY - box.top - CELL.height;
    const offset =
      (this.rows + 1) * CELL.height <= TALLEST ? this.scroller.scrollTop % CELL.height : 0;
    const row = this.window().top + Math.floor((y + offset) / CELL.height);
    const column = Math.floor(x / CELL.width);
    if (x >= 0 && y >= 0 && row < this.rows && column < this.columns) {
      this.choose(row, column);
    }
  }

  private choose(row: number, column: number): void {
    this.stopEditing();
    this.at = {
      row: Math.max(0, Math.min(row, this.rows - 1)),
      column: Math.max(0, Math.min(column, this.columns - 1)),
    };
    this.reveal();
    this.draw();
    this.listener.chosen(this.place());
  }

  /** Scrolls to the chosen cell. */
  private reveal(): void {
    const s = this.scroller;
    const x = this.at.column * CELL.width;
    if (x < s.scrollLeft) {
      s.scrollLeft = x;
    } else if (x + CELL.width + CELL.head > s.scrollLeft + s.clientWidth) {
      s.scrollLeft = x + CELL.width + CELL.head - s.clientWidth;
    }
    const seen = Math.max(1, Math.floor(s.clientHeight / CELL.height) - 1);
    const top = this.topRow();
    if (this.at.row < top || this.at.row >= top + seen) {
      const target = this.at.row < top ? this.at.row : this.at.row - seen + 1;
      s.scrollTop =
        (this.rows + 1) * CELL.height <= TALLEST
          ? target * CELL.height
          : (target / (this.rows - seen)) * (TALLEST - s.clientHeight);
    }
  }

  private key(e: KeyboardEvent): void {
    if (this.editing) {
      return;
    }
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / CELL.height) - 2);
    const moves: Record<string, [number, number]> = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      PageUp: [-page, 0],
      PageDown: [page, 0],
      Home: [0, -this.at.column],
      End: [0, this.columns],
    };
    const by = moves[e.key];
    if (by) {
      const whole = e.ctrlKey && (e.key === "Home" || e.key === "End");
      const row = whole ? (e.key === "Home" ? 0 : this.rows) : this.at.row + by[0];
      this.choose(row, this.at.column + by[1]);
    } else if (e.key === "F2" || e.key === "Enter") {
      this.edit();
    } else {
      return;
    }
    e.preventDefault();
  }

  /** Lets the chosen element be given another value. */
  private edit(): void {
    const index = this.indexOf(this.at.row, this.at.column);
    const text = index === undefined ? undefined : this.there?.elements.text(index);
    if (text === undefined) {
      return;
    }
    this.drawNow();
    const node = this.cells.querySelector<HTMLElement>(".chosen");
    if (!node) {
      return;
    }
    const input = h("input", { value: text, "aria-label": "New value" });
    this.editing = input;
    fill(node, input);
    input.select();
    input.addEventListener("keydown", (e) => {
      e.stopPropagation();
      if (e.key === "Enter") {
        void this.set(input.value);
      } else if (e.key === "Escape") {
        this.stopEditing();
      }
    });
    input.addEventListener("blur", () => this.stopEditing());
  }

  private stopEditing(): void {
    if (this.editing) {
      this.editing = undefined;
      this.scroller.focus();
      this.draw();
    }
  }

  private async set(value: string): Promise<void> {
    const expression = elementExpression(this.model.subject.expression, this.place());
    this.stopEditing();
    try {
      await this.connection.call("set", { expression, value: this.model.written(value) });
    } catch (error) {
      if (!(error instanceof Outdated)) {
        this.listener.failed(messageOf(error));
      }
    }
  }
}

function cell(
  role: string,
  x: number,
  y: number,
  width: number,
  text: string,
  more: Record<string, unknown>,
  style = "",
): HTMLElement {
  const node = h("div", { role, class: `cell ${role} ${style}`, ...more }, text);
  node.style.transform = `translate(${x}px, ${y}px)`;
  node.style.width = `${width}px`;
  return node;
}

/** What does not fit stands at the right: the front of a number is not cut off. */
function shortEnough(wide: string, text: string): string {
  return wide.length <= MOST_CHARACTERS ? wide : text;
}

function inside(
  w: { top: number; bottom: number; left: number; right: number },
  part: Part,
): boolean {
  const { rows, columns } = part;
  return (
    w.top >= rows.from && w.bottom <= rows.to && w.left >= columns.from && w.right <= columns.to
  );
}
