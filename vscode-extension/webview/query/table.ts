/** An answer as a table: of a million rows only those in sight exist. */

import { aligned, widthBehind } from "../../shared/format";
import type { Answer, Cell, SourceLocation } from "../../shared/query/messages";
import { h } from "../dom";
import { formatCell, isNs } from "./format";
import { Pages, type Sort } from "./pages";
import { scrollTo, type Window, windowOf } from "./windowing";

const LEAST_WIDTH = 40;
const WIDEST = 420;
const SLOW_MS = 60;

interface TableEvents {
  fetch(offset: number, limit: number, sort: Sort | undefined): Promise<Answer>;
  goto(location: SourceLocation): void;
  /** Shows a field whole. */
  open(row: number, column: number, cell: Cell): void;
  copy(text: string): void;
  copyRows(first: number, count: number): void;
  failed(error: Error): void;
}

/** A place in the table, and the other end of what is marked. */
interface Mark {
  row: number;
  column: number;
  anchor: number;
}

export class ResultTable {
  readonly element: HTMLElement;
  readonly pages: Pages;
  private readonly header: HTMLElement;
  private readonly body: HTMLElement;
  private readonly space: HTMLElement;
  private columns: string[] = [];
  private kinds: string[] = [];
  private widths: number[] = [];
  private count = 0;
  private done = false;
  private mark: Mark = { row: 0, column: 0, anchor: 0 };
  private frame = 0;
  private later: ReturnType<typeof setTimeout> | undefined;
  private lastTop = 0;
  ms = false;

  constructor(private readonly events: TableEvents) {
    this.header = h("div", { class: "grid-head", role: "row", "aria-rowindex": 1 });
    this.body = h("div", { class: "grid-body", role: "rowgroup" });
    this.space = h("div", { class: "grid-space", role: "presentation" }, this.body);
    this.element = h(
      "div",
      { class: "grid", role: "grid", tabindex: 0, "aria-label": "Rows", "aria-readonly": "true" },
      h("div", { role: "rowgroup", class: "grid-top" }, this.header),
      this.space,
    );
    this.pages = new Pages(events.fetch, () => this.draw(), events.failed);
    this.element.addEventListener("scroll", () => this.scrolled());
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.body.addEventListener("mousedown", (event) => this.onPress(event));
    this.body.addEventListener("dblclick", () => this.activate());
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** A new answer, with its first rows. */
  begin(answer: Answer): void {
    this.columns = answer.columns;
    this.kinds = answer.kinds;
    this.pages.begin(answer.rows);
    this.mark = { row: 0, column: 0, anchor: 0 };
    this.widths = answer.columns.map((name, k) => this.fitWidth(name, k, answer.rows));
    this.element.scrollTop = this.element.scrollLeft = 0;
    this.grow(answer);
    this.drawHeader();
  }

  /** More rows of it. */
  grow(answer: Answer): void {
    const whole = answer.done && !this.done;
    this.count = answer.count;
    this.done = answer.done;
    this.element.setAttribute("aria-rowcount", String(answer.done ? answer.count + 1 : -1));
    this.element.setAttribute("aria-colcount", String(answer.columns.length));
    if (whole) {
      this.drawHeader();
    }
    this.draw();
  }

  /** Times in ns as ms, or as they are. */
  show(ms: boolean): void {
    this.ms = ms;
    this.drawHeader();
    this.draw();
  }

  focus(): void {
    this.element.focus();
  }

  // --- drawing ---

  private get rowHeight(): number {
    const height = Number.parseFloat(getComputedStyle(this.element).getPropertyValue("--row"));
    return height || 22;
  }

  private window(): Window {
    return windowOf(this.scroll());
  }

  private scroll() {
    const viewport = this.element.clientHeight - this.header.offsetHeight;
    return { rows: this.count, rowHeight: this.rowHeight, viewport, top: this.element.scrollTop };
  }

  private scrolled(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  draw(): void {
    const window = this.window();
    this.space.style.height = `${window.height}px`;
    const width = this.widths.reduce((sum, w) => sum + w, 0) + this.gutter;
    this.space.style.width = `${width}px`;
    this.header.style.width = `${width}px`;
    this.body.style.transform = `translateY(${window.offset}px)`;
    const rows: HTMLElement[] = [];
    const behind = this.behind(window);
    for (let k = 0; k < window.count; k++) {
      rows.push(this.row(window.first + k, behind));
    }
    this.body.replaceChildren(...rows);
    this.active();
    const { scrollLeft, clientWidth, scrollWidth } = this.element;
    this.element.classList.toggle("goes-on", scrollLeft + clientWidth < scrollWidth - 1);
    // While the bar is dragged far, pages that are only passed are not asked for.
    const jump = Math.abs(this.element.scrollTop - this.lastTop) > this.element.clientHeight * 2;
    this.lastTop = this.element.scrollTop;
    clearTimeout(this.later);
    const want = () => this.pages.want(window.first, window.count, this.count);
    if (jump) {
      this.later = setTimeout(want, SLOW_MS);
    } else {
      want();
    }
  }

  private get gutter(): number {
    return 16 + 8 * String(Math.max(this.count, 99)).length;
  }

  private row(index: number, behind: number[]): HTMLElement {
    const cells = this.pages.row(index);
    const { row, anchor } = this.mark;
    const marked = index >= Math.min(row, anchor) && index <= Math.max(row, anchor);
    const node = h("div", {
      class: `grid-row${marked && row !== anchor ? " marked" : ""}${index % 2 ? " odd" : ""}`,
      role: "row",
      "aria-rowindex": index + 2,
      "data-row": index,
    });
    const number = h("div", { class: "gutter", role: "rowheader", text: String(index + 1) });
    number.style.width = `${this.gutter}px`;
    node.append(number);
    for (let k = 0; k < this.columns.length; k++) {
      node.append(this.cell(index, k, cells?.[k], behind[k] ?? 0));
    }
    return node;
  }

  /** Numbers of a column stand under each other by their points: of the rows in sight. */
  private behind({ first, count }: Window): number[] {
    return this.columns.map((name, k) => {
      let most = 0;
      for (let row = first; row < first + count; row++) {
        const { text, kind } = formatCell(this.pages.row(row)?.[k], this.ms && isNs(name));
        most = kind === "number" ? Math.max(most, widthBehind(text)) : most;
      }
      return most;
    });
  }

  private cell(row: number, column: number, cell: Cell | undefined, behind: number): HTMLElement {
    const name = this.columns[column] ?? "";
    const { text, kind } = formatCell(cell, this.ms && isNs(name));
    const link = this.isLink(name, cell);
    const node = h("div", {
      class: `cell ${kind}${link ? " link" : ""}`,
      role: "gridcell",
      id: `cell-${row}-${column}`,
      "aria-colindex": column + 1,
      "data-column": column,
      title: text.length > 30 ? text : link ? "Go to the line (Enter)" : undefined,
      text: kind === "number" ? aligned(text, behind) : text,
    });
    node.style.width = `${this.widths[column]}px`;
    return node;
  }

  private isLink(name: string, cell: Cell | undefined): boolean {
    if (cell === null || cell === undefined) {
      return false;
    }
    const near = this.columns.some((c) => ["file", "run", "op", "site"].includes(c));
    return (name === "line" && near) || (name === "file" && typeof cell === "string");
  }

  // --- columns ---

  private fitWidth(name: string, column: number, rows: Cell[][]): number {
    let longest = name.length + (isNs(name) ? 6 : 2); // headings are bold, and have an arrow
    let behind = 0;
    let before = 0;
    for (const row of rows) {
      const { text } = formatCell(row[column]);
      behind = Math.max(behind, widthBehind(text));
      before = Math.max(before, text.length - widthBehind(text));
      longest = Math.max(longest, text.length);
    }
    longest = this.kinds[column] === "number" ? Math.max(longest, before + behind) : longest;
    return Math.min(WIDEST, Math.max(LEAST_WIDTH, Math.ceil(longest * this.letter) + 20));
  }

  /** The width of a character: the font is that of the editor. */
  private get letter(): number {
    const context = document.createElement("canvas").getContext("2d");
    const style = getComputedStyle(this.element);
    if (!context || !style.fontSize) {
      return 8;
    }
    context.font = `${style.fontSize} ${style.fontFamily}`;
    return context.measureText("0").width;
  }

  private drawHeader(): void {
    const corner = h("div", { class: "gutter", role: "columnheader", "aria-label": "Row" });
    corner.style.width = `${this.gutter}px`;
    this.header.replaceChildren(corner, ...this.columns.map((name, k) => this.head(name, k)));
  }

  private head(name: string, column: number): HTMLElement {
    const sort = this.pages.sort?.column === column ? this.pages.sort : undefined;
    const unit = this.ms && isNs(name) ? " (ms)" : "";
    const arrow = sort ? (sort.descending ? " ▼" : " ▲") : "";
    const button = h("button", {
      class: "sort",
      text: `${name}${unit}${arrow}`,
      tabindex: -1,
      title: this.done ? `Sort by ${name}` : "Sorting is available once all rows are loaded",
      onclick: () => this.sortBy(column),
    });
    const grip = h("div", { class: "grip", "aria-hidden": "true" });
    grip.addEventListener("mousedown", (event) => this.resize(event, column));
    grip.addEventListener("dblclick", () => this.refitColumn(column));
    const node = h("div", {
      class: `head${this.kinds[column] === "number" ? " number" : ""}`,
      role: "columnheader",
      "aria-colindex": column + 1,
      "aria-sort": sort ? (sort.descending ? "descending" : "ascending") : "none",
    });
    node.style.width = `${this.widths[column]}px`;
    node.append(button, grip);
    return node;
  }

  /** Up, down, and as they came. */
  private sortBy(column: number): void {
    if (!this.done) {
      return;
    }
    const now = this.pages.sort;
    const next =
      now?.column !== column
        ? { column, descending: false }
        : now.descending
          ? undefined
          : { column, descending: true };
    this.pages.order(next);
    this.drawHeader();
    this.draw();
  }

  private resize(event: MouseEvent, column: number): void {
    event.preventDefault();
    const [start, width] = [event.clientX, this.widths[column] ?? LEAST_WIDTH];
    const move = (moved: MouseEvent) => {
      this.widths[column] = Math.max(LEAST_WIDTH, width + moved.clientX - start);
      this.drawHeader();
      this.draw();
    };
    const end = () => {
      document.removeEventListener("mousemove", move);
      document.removeEventListener("mouseup", end);
    };
    document.addEventListener("mousemove", move);
    document.addEventListener("mouseup", end);
  }

  private refitColumn(column: number): void {
    const { first, count } = this.window();
    const rows: Cell[][] = [];
    for (let k = first; k < first + count; k++) {
      const row = this.pages.row(k);
      if (row) {
        rows.push(row);
      }
    }
    this.widths[column] = this.fitWidth(this.columns[column] ?? "", column, rows);
    this.drawHeader();
    this.draw();
  }

  // --- keys and marks ---

  private onPress(event: MouseEvent): void {
    const target = event.target as HTMLElement;
    const row = Number(target.closest<HTMLElement>(".grid-row")?.dataset.row ?? Number.NaN);
    if (Number.isNaN(row) || event.button !== 0) {
      return;
    }
    const column = Number(target.dataset.column ?? this.mark.column);
    this.mark = { row, column, anchor: event.shiftKey ? this.mark.anchor : row };
    this.draw();
    if (target.classList.contains("link") && !event.shiftKey) {
      this.follow(row);
    }
  }

  private onKey(event: KeyboardEvent): void {
    const { row, column } = this.mark;
    const page = Math.max(1, Math.floor(this.scroll().viewport / this.rowHeight) - 1);
    const ends = event.ctrlKey || event.metaKey;
    const moves: Record<string, [number, number]> = {
      ArrowDown: [row + 1, column],
      ArrowUp: [row - 1, column],
      ArrowRight: [row, column + 1],
      ArrowLeft: [row, column - 1],
      PageDown: [row + page, column],
      PageUp: [row - page, column],
      Home: ends ? [0, 0] : [row, 0],
      End: ends ? [this.count - 1, this.columns.length - 1] : [row, this.columns.length - 1],
    };
    const move = moves[event.key];
    if (move) {
      event.preventDefault();
      this.moveTo(move[0], move[1], event.shiftKey);
    } else if (event.key === "Enter") {
      event.preventDefault();
      this.activate();
    } else if (ends && event.key.toLowerCase() === "c") {
      event.preventDefault();
      this.copy();
    } else if (ends && event.key.toLowerCase() === "a") {
      event.preventDefault();
      this.mark = { row: this.count - 1, column, anchor: 0 };
      this.draw();
    } else if (event.key.toLowerCase() === "s" && !ends && !event.altKey) {
      this.sortBy(column);
    }
  }

  private moveTo(row: number, column: number, extend: boolean): void {
    const r = Math.max(0, Math.min(this.count - 1, row));
    const c = Math.max(0, Math.min(this.columns.length - 1, column));
    this.mark = { row: r, column: c, anchor: extend ? this.mark.anchor : r };
    this.element.scrollTop = scrollTo(r, this.scroll());
    const before = this.widths.slice(0, c).reduce((sum, w) => sum + w, 0);
    const [left, width] = [this.element.scrollLeft, this.element.clientWidth - this.gutter];
    const end = before + (this.widths[c] ?? 0);
    this.element.scrollLeft = Math.min(Math.max(left, end - width), before);
    this.draw();
  }

  private active(): void {
    const id = `cell-${this.mark.row}-${this.mark.column}`;
    this.body.querySelector(".active")?.classList.remove("active");
    const cell = document.getElementById(id);
    cell?.classList.add("active");
    if (cell) {
      this.element.setAttribute("aria-activedescendant", id);
    } else {
      this.element.removeAttribute("aria-activedescendant");
    }
  }

  private activate(): void {
    const { row, column } = this.mark;
    const cell = this.pages.row(row)?.[column];
    if (this.isLink(this.columns[column] ?? "", cell)) {
      this.follow(row);
    } else if (cell !== undefined && cell !== null) {
      this.events.open(row, column, cell);
    }
  }

  private follow(row: number): void {
    const cells = this.pages.row(row) ?? [];
    const of = (name: string) => {
      const cell = cells[this.columns.indexOf(name)];
      return typeof cell === "number" || typeof cell === "string" ? cell : undefined;
    };
    const [file, line, run, op, site] = ["file", "line", "run", "op", "site"].map(of);
    this.events.goto({
      file: typeof file === "string" ? file : undefined,
      line: typeof line === "number" ? line : undefined,
      run,
      op: typeof op === "number" ? op : undefined,
      site: typeof site === "string" ? site : undefined,
    });
  }

  /** What is marked: a field, or rows. */
  private copy(): void {
    const { row, column, anchor } = this.mark;
    const cell = this.pages.row(row)?.[column];
    if (row === anchor) {
      const { text } = formatCell(cell, this.ms && isNs(this.columns[column] ?? ""));
      this.events.copy(cell === null ? "" : text);
      return;
    }
    this.events.copyRows(Math.min(row, anchor), Math.abs(row - anchor) + 1);
  }
}
