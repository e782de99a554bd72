/** Rows and columns; of ten thousand rows only those in sight exist. */

import { aligned, widthBehind } from "../../shared/format";
import { FITTED, fitted } from "../../shared/values/columns";
import type { Value } from "../../shared/values/messages";
import {
  COLUMNS,
  type Column,
  cellText,
  FIGURES,
  isCheap,
  NUMBERS,
  notFinite,
  type Order,
  sorted,
} from "../../shared/values/rows";
import { h } from "../dom";
import { scrollTo, windowOf } from "../query/windowing";

interface TableEvents {
  /** Statistics of these rows; `byHand` also of those that take long. */
  want(values: Value[], byHand?: boolean): void;
  goTo(name: string, focus: boolean): void;
  open(name: string): void;
  search(): void;
  sorted(): void;
}

const ROW = 22;
const WIDEST = 32; // characters of a column
const GAP = 8; // pixels between columns
const MARGIN = 8; // and beside the first
const ARROW = 2; // characters of the heading that is sorted by
/** Where the first click sorts downwards: what is largest, or wrong, is looked for. */
const DOWNWARDS: ReadonlySet<Column> = new Set(["NaN", "inf", "memory"]);
const KIND = { input: "input", value: "", param: "param", state: "state" };

export class ValueTable {
  readonly element: HTMLElement;
  private readonly header = h("div", { class: "head row", role: "row", "aria-rowindex": 1 });
  private readonly body = h("div", { class: "body", role: "rowgroup" });
  private readonly space = h("div", { class: "space", role: "presentation" }, this.body);
  private readonly ruler = h("div", { class: "ruler", role: "presentation" });
  private values: Value[] = [];
  private rows: Value[] = [];
  private order: Order | undefined;
  /** Characters of each column, were there room for all. */
  private widths: number[] = [];
  private behind = new Map<Column, number>();
  private chosen: string | undefined;
  private frame = 0;

  constructor(private readonly events: TableEvents) {
    this.element = h(
      "div",
      { class: "grid", role: "grid", tabindex: 0, "aria-label": "Values", "aria-readonly": "true" },
      h("div", { role: "rowgroup", class: "top" }, this.header),
      this.space,
      this.ruler,
    );
    this.element.style.setProperty("--gap", `${GAP}px`);
    this.element.style.setProperty("--margin", `${MARGIN}px`);
    this.element.addEventListener("scroll", () => this.drawSoon());
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("click", (event) => this.clicked(event));
    this.body.addEventListener("dblclick", (event) => this.twice(event));
    new ResizeObserver(() => {
      this.arrange();
      this.drawSoon();
    }).observe(this.element);
    this.drawHeader();
  }

  /** Whether rows are in an order that statistics decide. */
  get needsFigures(): boolean {
    return this.order === undefined || FIGURES.has(this.order.column);
  }

  show(values: Value[]): void {
    this.values = values;
    this.rows = sorted(values, this.order);
    this.measure();
    this.element.setAttribute("aria-rowcount", String(values.length + 1));
    this.draw();
  }

  /** Columns as wide as what they hold, or at least as in the first thousand rows. */
  private measure(): void {
    const sample = this.values.slice(0, 1000);
    const tag = sample.some((value) => value.kind !== "value") ? 6 : 0;
    this.widths = COLUMNS.map((column) => {
      const texts = sample.map((value) => cellText(value, column));
      const behind = Math.max(0, ...texts.map(widthBehind));
      this.behind.set(column, behind);
      const longest = (text: string) => text.length - widthBehind(text);
      const number = Math.max(0, ...texts.map(longest)) + behind;
      const text = Math.max(0, ...texts.map((t) => t.length));
      const heading = column.length + (this.order?.column === column ? ARROW : 0);
      const width = Math.max(NUMBERS.has(column) ? number : text, heading);
      return Math.min(width, WIDEST) + (column === "name" ? tag : 0);
    });
    this.arrange();
  }

  /** Columns as the view has room for them. */
  private arrange(): void {
    const character = this.ruler.offsetWidth / 100;
    const room = this.element.clientWidth - 2 * MARGIN - (FITTED - 1) * GAP;
    const widths = character ? fitted(this.widths, room / character) : this.widths;
    const [name = 0, ...others] = widths;
    const columns = [`minmax(${name}ch, 1fr)`, ...others.map((width) => `${width}ch`)];
    this.element.style.setProperty("--columns", columns.join(" "));
    const characters = widths.reduce((sum, width) => sum + width, 0);
    const between = 2 * MARGIN + (COLUMNS.length - 1) * GAP;
    this.element.style.setProperty("--least", `calc(${characters}ch + ${between}px)`);
  }

  private drawHeader(): void {
    this.header.replaceChildren(...COLUMNS.map((column) => this.heading(column)));
  }

  private heading(column: Column): HTMLElement {
    const order = this.order?.column === column ? this.order : undefined;
    const sort = order ? (order.descending ? "descending" : "ascending") : "none";
    const arrow = order ? (order.descending ? " ▼" : " ▲") : "";
    return h(
      "div",
      { class: `cell ${column}`, role: "columnheader", "aria-sort": sort },
      h("button", {
        title: `Sort by ${column}`,
        text: `${column}${arrow}`,
        onclick: () => this.sortBy(column),
      }),
    );
  }

  /** One way, the other way, and no column: what is not finite first. */
  private sortBy(column: Column): void {
    const first = DOWNWARDS.has(column);
    const now = this.order?.column === column ? this.order : undefined;
    this.order =
      now === undefined
        ? { column, descending: first }
        : now.descending === first
          ? { column, descending: !first }
          : undefined;
    const focused = document.activeElement?.closest(".head") !== null;
    this.drawHeader();
    if (focused) {
      this.header.children[COLUMNS.indexOf(column)]?.querySelector("button")?.focus();
    }
    this.events.sorted();
  }

  // --- drawing ---

  private scroll() {
    const viewport = this.element.clientHeight - this.header.offsetHeight;
    return { rows: this.rows.length, rowHeight: ROW, viewport, top: this.element.scrollTop };
  }

  private drawSoon(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  private draw(): void {
    const window = windowOf(this.scroll());
    this.space.style.height = `${window.height}px`;
    this.body.style.transform = `translateY(${window.offset}px)`;
    const shown = this.rows.slice(window.first, window.first + window.count);
    shown.forEach((value, k) => {
      this.place(this.row(value, window.first + k), k);
    });
    while (this.body.children.length > shown.length) {
      this.body.lastElementChild?.remove();
    }
    this.mark();
    this.events.want(shown);
  }

  /**
   * The k-th row. One that shows the same value stays, with new cells: a table is drawn anew while
   * somebody presses the button, and a click is one on the element that was there.
   */
  private place(row: HTMLElement, k: number): void {
    const there = this.body.children[k] as HTMLElement | undefined;
    if (!there) {
      this.body.append(row);
      return;
    }
    if (there.dataset.name !== row.dataset.name) {
      there.replaceWith(row);
      return;
    }
    for (const { name, value } of row.attributes) {
      there.setAttribute(name, value);
    }
    [...row.children].forEach((cell, c) => {
      const old = there.children[c];
      if (!old?.isEqualNode(cell)) {
        old?.replaceWith(cell);
      }
    });
  }

  /** Shows which row is chosen. Rows stay the same: a double click is one on the same element. */
  private mark(): void {
    this.element.removeAttribute("aria-activedescendant");
    for (const row of this.body.querySelectorAll<HTMLElement>(".row")) {
      const chosen = row.dataset.name === this.chosen;
      row.classList.toggle("chosen", chosen);
      row.setAttribute("aria-selected", String(chosen));
      if (chosen) {
        this.element.setAttribute("aria-activedescendant", row.id);
      }
    }
  }

  private row(value: Value, index: number): HTMLElement {
    return h(
      "div",
      {
        class: notFinite(value) > 0 ? "row troubled" : "row",
        role: "row",
        id: `row-${index}`,
        "data-name": value.name,
        "aria-rowindex": index + 2,
        title: `${value.name}: ${value.type}${value.text ? ` = ${value.text}` : ""}`,
      },
      ...COLUMNS.map((column) => this.cell(value, column)),
    );
  }

  private cell(value: Value, column: Column): HTMLElement {
    const text = cellText(value, column);
    const attributes = { class: `cell ${column}`, role: "gridcell" };
    if (column === "name") {
      const kind = KIND[value.kind];
      return h("div", attributes, h("span", {}, text), h("span", { class: "kind", text: kind }));
    }
    if (FIGURES.has(column) && !value.statistics) {
      return this.waiting(value, column, attributes);
    }
    const number = NUMBERS.has(column);
    return h("div", {
      ...attributes,
      text: number ? aligned(text, this.behind.get(column) ?? 0) : text,
    });
  }

  /** Statistics that are on their way, or that are taken only where somebody asks for them. */
  private waiting(value: Value, column: Column, attributes: Record<string, string>): HTMLElement {
    if (isCheap(value)) {
      return h("div", { ...attributes, class: `${attributes.class} waits`, text: "…" });
    }
    const title = value.dropped
      ? "Its memory was given up: computes it again for its statistics"
      : "Takes the statistics of this large tensor";
    const ask = h("button", { class: "ask", text: "compute", title, tabindex: -1 });
    return h("div", attributes, column === "NaN" && ask);
  }

  // --- choosing ---

  private clicked(event: MouseEvent): void {
    const name = nameAt(event);
    const value = this.rows.find((v) => v.name === name);
    if (!value) {
      return;
    }
    this.choose(value.name);
    if ((event.target as Element).closest(".ask")) {
      this.events.want([value], true);
    } else {
      this.events.goTo(value.name, false);
    }
  }

  private twice(event: MouseEvent): void {
    const name = nameAt(event);
    if (name !== undefined && !(event.target as Element).closest(".ask")) {
      this.events.open(name);
    }
  }

  private choose(name: string | undefined): void {
    this.chosen = name;
    const index = this.rows.findIndex((v) => v.name === name);
    if (index >= 0) {
      this.element.scrollTop = scrollTo(index, this.scroll()); // which draws where it moves
    }
    this.mark();
  }

  private key(event: KeyboardEvent): void {
    if ((event.target as Element).closest("button") || event.ctrlKey || event.metaKey) {
      return;
    }
    const at = this.rows.findIndex((v) => v.name === this.chosen);
    const page = Math.max(1, Math.floor(this.scroll().viewport / ROW) - 1);
    const moves: Record<string, number> = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: this.rows.length - 1,
    };
    const to = moves[event.key];
    const value = this.rows[at];
    if (to !== undefined) {
      this.choose(this.rows[Math.min(Math.max(to, 0), this.rows.length - 1)]?.name);
    } else if (event.key === "/") {
      this.events.search();
    } else if (value && event.key === "Enter") {
      this.events.goTo(value.name, true);
    } else if (value && event.key.toLowerCase() === "t") {
      this.events.open(value.name);
    } else if (value && event.key === " ") {
      this.events.want([value], true);
    } else {
      return;
    }
    event.preventDefault();
  }
}

function nameAt(event: MouseEvent): string | undefined {
  return (event.target as Element).closest<HTMLElement>(".row")?.dataset.name;
}
