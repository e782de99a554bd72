/** Lines by step as a chart: in the colours of the theme, with a logarithmic scale, looked at closer by dragging. */

import uPlot from "uplot";
import { counted, significant } from "../../shared/format";
import type { Plot } from "../../shared/query/messages";
import { h } from "../dom";
import {
  type Aligned,
  alignLines,
  dropNonPositive,
  NAMED,
  needsLogScale,
  summary,
  tick,
  unitOf,
} from "./chartData";

interface ChartEvents {
  /** The part between two xs is wanted with all its points; undefined: the whole. */
  zoom(part: { low: number; high: number } | undefined): void;
}

/** Colours by theme; dashes tell lines apart where colours do not. */
const COLOURS = ["blue", "green", "purple", "yellow", "red", "orange"].map(
  (name) => `--vscode-charts-${name}`,
);
const DASHES = [[], [], [], [], [], [], [6, 3], [2, 3]];

export class Chart {
  readonly element: HTMLElement;
  private readonly area: HTMLElement;
  private readonly legend: HTMLElement;
  private readonly tip: HTMLElement;
  private readonly note: HTMLElement;
  private readonly logBox: HTMLInputElement;
  private readonly whole: HTMLButtonElement;
  private drawn: uPlot | undefined;
  private plot: Plot | undefined;
  private hidden = new Set<string>();
  private log: boolean | undefined;
  private part: { low: number; high: number } | undefined;
  private unit = { factor: 1, label: "" };

  constructor(private readonly events: ChartEvents) {
    this.logBox = h("input", { type: "checkbox", id: "log-scale" });
    this.logBox.addEventListener("change", () => {
      this.log = this.logBox.checked;
      this.redraw();
    });
    this.whole = h("button", {
      text: "Whole range",
      title: "Show all steps (double-click or Escape)",
      onclick: () => this.zoom(undefined),
    });
    this.note = h("span", { class: "chart-note", role: "status" });
    this.area = h("div", { class: "chart-area", tabindex: 0, role: "img" });
    this.tip = h("div", { class: "chart-tip", "aria-live": "polite" });
    this.legend = h("div", { class: "chart-legend", role: "group", "aria-label": "Lines" });
    const bar = h(
      "div",
      { class: "chart-bar" },
      h("label", { for: "log-scale" }, this.logBox, "Logarithmic"),
      this.whole,
      this.note,
    );
    this.element = h(
      "div",
      { class: "chart" },
      bar,
      h("div", { class: "chart-main" }, this.area, this.legend),
    );
    this.area.append(this.tip);
    this.area.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.resize()).observe(this.area);
    const themed = new MutationObserver(() => this.redraw());
    themed.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ["style"] });
  }

  /** Another plot; or the same one, of another part or with more steps (`again`). */
  show(plot: Plot, again: boolean): void {
    this.plot = plot;
    if (!again) {
      this.hidden.clear();
      this.log = undefined;
      this.part = undefined;
    }
    this.unit = unitOf(plot);
    this.redraw();
  }

  focus(): void {
    this.area.focus();
  }

  /** The chart with its names as a PNG in a data URL. */
  picture(title: string): string | undefined {
    const canvas = this.drawn?.ctx.canvas;
    if (!canvas || !this.plot) {
      return undefined;
    }
    const ratio = devicePixelRatio;
    const image = document.createElement("canvas");
    const names = this.plot.lines.slice(0, NAMED);
    const [head, side] = [34 * ratio, 210 * ratio];
    image.width = canvas.width + side;
    image.height = canvas.height + head;
    const context = image.getContext("2d");
    if (!context) {
      return undefined;
    }
    const style = getComputedStyle(document.body);
    context.fillStyle = style.backgroundColor;
    context.fillRect(0, 0, image.width, image.height);
    context.drawImage(canvas, 0, head);
    context.textBaseline = "middle";
    context.fillStyle = style.color;
    context.font = `600 ${13 * ratio}px ${style.fontFamily}`;
    context.fillText(title, 12 * ratio, head / 2);
    context.font = `${12 * ratio}px ${style.fontFamily}`;
    for (const [k, line] of names.entries()) {
      const y = head + (20 + 20 * k) * ratio;
      context.fillStyle = this.colour(k);
      context.fillRect(canvas.width + 8 * ratio, y - 1.5 * ratio, 16 * ratio, 3 * ratio);
      context.fillStyle = style.color;
      context.fillText(line.label, canvas.width + 30 * ratio, y, side - 34 * ratio);
    }
    return image.toDataURL("image/png");
  }

  // --- drawing ---

  private redraw(): void {
    const { plot } = this;
    this.drawn?.destroy();
    this.drawn = undefined;
    if (!plot) {
      return;
    }
    const log = this.log ?? needsLogScale(plot.lines);
    this.logBox.checked = log;
    this.whole.hidden = this.part === undefined;
    this.area.setAttribute("aria-label", summary(plot));
    this.writeNote(plot);
    const data = this.scaled(plot, log);
    const size = this.size();
    this.drawn = new uPlot(this.options(plot, data, log, size), data as uPlot.AlignedData);
    this.area.prepend(this.drawn.root);
    this.names(plot);
  }

  private scaled(plot: Plot, log: boolean): Aligned {
    const [xs, ...columns] = alignLines(plot.lines);
    const { factor } = this.unit;
    const scale = (y: number | null | undefined) => (typeof y === "number" ? y * factor : y);
    const data: Aligned = [xs, ...columns.map((ys) => (factor === 1 ? ys : ys.map(scale)))];
    return log ? dropNonPositive(data) : data;
  }

  private options(
    plot: Plot,
    data: Aligned,
    log: boolean,
    size: { width: number; height: number },
  ) {
    const style = getComputedStyle(document.documentElement);
    const body = getComputedStyle(document.body);
    const variable = (name: string, other: string) => style.getPropertyValue(name).trim() || other;
    const ink = variable("--vscode-foreground", body.color);
    const contrast =
      document.body.classList.contains("vscode-high-contrast") ||
      document.body.classList.contains("vscode-high-contrast-light");
    const grid = contrast
      ? `color-mix(in srgb, ${ink} 40%, transparent)`
      : `color-mix(in srgb, ${ink} 14%, transparent)`;
    const font = `11px ${body.fontFamily}`;
    const axis = { stroke: ink, font, labelFont: font, ticks: { stroke: grid, width: 1 } };
    const integers = data[0].every(Number.isInteger);
    const few = (data[0].length ?? 0) <= 60;
    const options: uPlot.Options = {
      ...size,
      legend: { show: false },
      scales: {
        x: { time: false, range: (_, low, high) => [low, low === high ? low + 1 : high] },
        y: log ? { distr: 3, log: 10 } : {},
      },
      axes: [
        {
          ...axis,
          grid: { show: false },
          label: plot.axis,
          labelSize: 18,
          size: 34,
          incrs: integers ? WHOLE : undefined,
          values: (_, ticks) => ticks.map((t) => tick(t)),
        },
        {
          ...axis,
          grid: { stroke: grid, width: 1 },
          size: (_, values) => 20 + 7 * Math.max(2, ...(values ?? []).map((v) => v.length)),
          label: this.unit.label || undefined,
          labelSize: this.unit.label ? 18 : 0,
          values: (_, ticks) => ticks.map((t) => tick(t)),
        },
      ],
      cursor: {
        drag: { x: true, y: false, setScale: false },
        focus: { prox: 24 },
        points: { size: 7 },
      },
      focus: { alpha: 0.45 },
      series: [
        {},
        ...plot.lines.map(
          (line, k): uPlot.Series => ({
            label: line.label,
            show: !this.hidden.has(line.label),
            stroke: this.colour(k),
            width: k < NAMED ? (contrast ? 2.2 : 1.6) : 0.8,
            alpha: k < NAMED ? 1 : 0.5,
            dash: DASHES[k] ?? [],
            points: { show: few && k < NAMED, size: 5, fill: this.colour(k) },
          }),
        ),
      ],
      hooks: {
        setSelect: [(u) => this.selected(u)],
        setCursor: [(u) => this.hover(u)],
        draw: [(u) => this.mark(u, plot, variable("--vscode-charts-red", "#e51400"))],
        ready: [(u) => u.over.addEventListener("dblclick", () => this.zoom(undefined))],
      },
    };
    return options;
  }

  /** A cross at the foot of each step where a tensor had NaNs or infinities. */
  private mark(u: uPlot, plot: Plot, colour: string): void {
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio;
    const [y, half] = [bbox.top + bbox.height - 5 * ratio, 3.5 * ratio];
    ctx.save();
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1.8 * ratio;
    ctx.beginPath();
    let last = Number.NEGATIVE_INFINITY;
    for (const { x: at } of plot.odd) {
      const x = u.valToPos(at, "x", true);
      if (x - last < half || x < bbox.left - half || x > bbox.left + bbox.width + half) {
        continue;
      }
      last = x;
      ctx.moveTo(x - half, y - half);
      ctx.lineTo(x + half, y + half);
      ctx.moveTo(x - half, y + half);
      ctx.lineTo(x + half, y - half);
    }
    ctx.stroke();
    ctx.restore();
  }

  private colour(k: number): string {
    const style = getComputedStyle(document.documentElement);
    const found = k < NAMED ? style.getPropertyValue(COLOURS[k % COLOURS.length] ?? "").trim() : "";
    const other = style.getPropertyValue("--vscode-disabledForeground").trim();
    return opaque(found || other || getComputedStyle(document.body).color);
  }

  private size(): { width: number; height: number } {
    return {
      width: Math.max(120, this.area.clientWidth),
      height: Math.max(100, this.area.clientHeight),
    };
  }

  private resize(): void {
    if (this.area.clientWidth > 0) {
      this.drawn?.setSize(this.size());
    }
  }

  private writeNote(plot: Plot): void {
    const [only] = plot.lines;
    const lines = plot.all === 1 && only ? only.label : counted(plot.all, "line");
    const left = plot.all > plot.lines.length ? `, ${plot.lines.length} of them drawn` : "";
    const odd = plot.odd.length
      ? `   ✕ NaN or infinity at ${counted(plot.odd.length, "place")}`
      : "";
    this.note.textContent = `${lines}, ${counted(plot.points, "point")}${left}${odd}`;
  }

  // --- names ---

  private names(plot: Plot): void {
    const entries = plot.lines.slice(0, NAMED).map((line, k) => {
      const on = !this.hidden.has(line.label);
      const swatch = h("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.borderTop = `3px ${DASHES[k]?.length ? "dashed" : "solid"} ${this.colour(k)}`;
      const title =
        line.site && line.site !== line.label ? `${line.label} (${line.site})` : line.label;
      const button = h(
        "button",
        { class: "legend-entry", "aria-pressed": String(on), title: `${title}: show or hide` },
        swatch,
        h("span", { class: "legend-name", text: line.label }),
        h("span", { class: "legend-value", "data-line": k }),
      );
      button.addEventListener("click", () => {
        this.toggle(line.label, k);
        button.setAttribute("aria-pressed", String(!this.hidden.has(line.label)));
      });
      return button;
    });
    const rest = plot.lines.length - NAMED;
    if (rest > 0) {
      entries.push(h("div", { class: "legend-rest", text: `and ${rest} more, in grey` }) as never);
    }
    this.legend.replaceChildren(...entries);
    this.legend.hidden = entries.length < 2; // the note names a line that is alone
  }

  private toggle(label: string, k: number): void {
    if (!this.hidden.delete(label)) {
      this.hidden.add(label);
    }
    this.drawn?.setSeries(k + 1, { show: !this.hidden.has(label) });
  }

  // --- looking closer ---

  private hover(u: uPlot): void {
    const { idx, left } = u.cursor;
    const { plot } = this;
    for (const [k, value] of this.legend.querySelectorAll<HTMLElement>(".legend-value").entries()) {
      const y =
        typeof idx === "number" ? nearest(u.data[k + 1] as (number | null)[], idx) : undefined;
      value.textContent = typeof y === "number" ? significant(y, 5) : "";
    }
    if (typeof idx !== "number" || !plot || left === undefined || left < 0) {
      this.tip.hidden = true;
      return;
    }
    const x = u.data[0][idx] as number;
    const odd = plot.odd.find((o) => Math.abs(u.valToPos(o.x, "x") - left) < 5);
    const detail = odd
      ? `\n✕ NaN or infinity in ${odd.labels.join(", ")}${odd.count > odd.labels.length ? ", …" : ""}`
      : "";
    this.tip.textContent = `${plot.axis} ${odd ? odd.x : significant(x, 9)}${detail}`;
    this.tip.hidden = false;
    const over = u.over.getBoundingClientRect();
    const area = this.area.getBoundingClientRect();
    const at = over.left - area.left + left;
    this.tip.style.left = `${at > area.width / 2 ? at - this.tip.offsetWidth - 8 : at + 8}px`;
    this.tip.style.top = `${over.top - area.top + 4}px`;
  }

  private selected(u: uPlot): void {
    const { left, width } = u.select;
    if (width > 4) {
      const [low, high] = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
      u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      this.zoom({ low, high });
    }
  }

  private zoom(part: { low: number; high: number } | undefined): void {
    if (part === undefined && this.part === undefined) {
      return;
    }
    this.part = part;
    this.events.zoom(part);
  }

  /** Arrows move the cursor along, + and - look closer and farther, Escape shows all. */
  private onKey(event: KeyboardEvent): void {
    const u = this.drawn;
    const xs = u?.data[0];
    if (!u || !xs?.length) {
      return;
    }
    const at = typeof u.cursor.idx === "number" ? u.cursor.idx : -1;
    const far = event.ctrlKey || event.shiftKey ? Math.max(1, Math.round(xs.length / 20)) : 1;
    const to: Record<string, number> = {
      ArrowRight: at + far,
      ArrowLeft: at - far,
      Home: 0,
      End: xs.length - 1,
    };
    const next = to[event.key];
    if (next !== undefined) {
      event.preventDefault();
      const x = xs[Math.max(0, Math.min(xs.length - 1, next))] as number;
      u.setCursor({ left: u.valToPos(x, "x"), top: u.over.clientHeight / 2 });
    } else if (event.key === "+" || event.key === "-") {
      const [low, high] = [u.scales.x?.min ?? 0, u.scales.x?.max ?? 1];
      const middle = (xs[at] as number | undefined) ?? (low + high) / 2;
      const half = (high - low) * (event.key === "+" ? 0.25 : 1);
      this.zoom({ low: middle - half, high: middle + half });
    } else if (event.key === "Escape") {
      this.zoom(undefined);
    }
  }
}

const WHOLE = [1, 2, 5]
  .flatMap((n) => [0, 1, 2, 3, 4, 5, 6, 7, 8].map((e) => n * 10 ** e))
  .sort((a, b) => a - b);

/** Some themes have half-transparent chart colours, which are mud on a dark ground. */
function opaque(colour: string): string {
  return colour
    .replace(/^(#[\da-f]{6})[\da-f]{2}$/i, "$1")
    .replace(/^rgba\((.*),[^,]*\)$/, "rgb($1)");
}

/** The value at a place, or the one before it, where the line goes on behind it. */
function nearest(ys: (number | null | undefined)[], at: number): number | null | undefined {
  if (ys[at] !== undefined) {
    return ys[at];
  }
  const goesOn = ys.findIndex((y, k) => k > at && y !== undefined) >= 0;
  for (let k = at - 1; goesOn && k >= 0; k--) {
    if (ys[k] !== undefined) {
      return ys[k];
    }
  }
  return undefined;
}
