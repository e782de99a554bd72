/** The histogram view: equal bins, or by exponents of 2; counts as they are, or their logarithm. */

import { messageOf } from "../../shared/errors";
import { partExpression, wholePart } from "../../shared/tensor/parts";
import { fill, h, themeColour } from "../dom";
import { type Connection, LatestOnly, Outdated } from "./connection";
import { formatNumber } from "./dom";
import type { Model } from "./model";
import { axisTicks } from "./ticks";

interface Bars {
  counts: number[];
  /** One more than counts; of exponents the powers of 2. */
  edges: number[];
  note: string;
  label: (k: number) => string;
}

const ROOM = { left: 64, right: 16, top: 12, bottom: 36 };

export class HistogramView {
  private readonly canvas = h("canvas", { role: "img", tabindex: 0 });
  private readonly note = h("figcaption", {});
  readonly node = h(
    "div",
    { class: "panes" },
    h("figure", { class: "pane" }, this.note, h("div", { class: "frame" }, this.canvas)),
  );
  private bars: Bars | undefined;
  private at = -1;
  private readonly newest = new LatestOnly();

  constructor(
    private readonly model: Model,
    private readonly connection: Connection,
    private readonly listener: { failed(text: string): void; hovered(text: string): void },
  ) {
    this.canvas.addEventListener("pointermove", (e) => this.point(this.binAt(e.offsetX)));
    this.canvas.addEventListener("pointerleave", () => this.point(-1));
    this.canvas.addEventListener("keydown", (e) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
      const count = this.bars?.counts.length ?? 0;
      if (by && count) {
        this.point((this.at + by + count) % count);
        e.preventDefault();
      }
    });
  }

  want(): void {
    this.newest.run(() => this.fetch());
  }

  private async fetch(): Promise<void> {
    const { model } = this;
    if (!model.type || model.state === "ended") {
      return;
    }
    try {
      this.bars = model.view.exponents ? await this.exponents() : await this.equal();
      this.draw();
    } catch (error) {
      if (!(error instanceof Outdated)) {
        this.bars = undefined;
        this.draw();
        this.listener.failed(messageOf(error));
      }
    }
  }

  private async equal(): Promise<Bars> {
    const { model } = this;
    const { expression } = model.subject;
    const { over } = model.view.scale;
    const of =
      over === "whole"
        ? expression
        : partExpression(expression, model.shape, wholePart(model.axes, model.shape));
    const { counts, edges, finite } = await this.connection.call("histogram", {
      expression: of,
      bins: model.view.bins,
    });
    const label = (k: number) => `${formatNumber(edges[k])} to ${formatNumber(edges[k + 1])}`;
    return { counts, edges, note: `${of}: ${formatNumber(finite)} finite elements`, label };
  }

  private async exponents(): Promise<Bars> {
    const { model } = this;
    const { expression } = model.subject;
    const { statistics } = await this.connection.call("statistics", { expression });
    const first = statistics.histogram.findIndex((n) => n > 0);
    const last = statistics.histogram.findLastIndex((n) => n > 0);
    const counts = first < 0 ? [] : statistics.histogram.slice(first, last + 1);
    const low = statistics.lowestExponent + first;
    const zeros = `${formatNumber(statistics.zero)} zeros`;
    return {
      counts,
      edges: counts.concat(0).map((_, k) => low + k),
      note: `${expression}: finite elements other than 0 by magnitude; ${zeros}`,
      label: (k) => `magnitude 2^${low + k} to 2^${low + k + 1}`,
    };
  }

  private binAt(x: number): number {
    const count = this.bars?.counts.length ?? 0;
    const width = this.canvas.clientWidth - ROOM.left - ROOM.right;
    const k = Math.floor(((x - ROOM.left) / width) * count);
    return k >= 0 && k < count ? k : -1;
  }

  private point(k: number): void {
    this.at = k;
    this.listener.hovered(
      k < 0 || !this.bars ? "" : `${this.bars.label(k)}: ${formatNumber(this.bars.counts[k])}`,
    );
    this.draw();
  }

  draw(): void {
    const frame = this.canvas.parentElement as HTMLElement;
    const dpr = window.devicePixelRatio || 1;
    const width = frame.clientWidth;
    const height = frame.clientHeight;
    this.canvas.width = Math.round(width * dpr);
    this.canvas.height = Math.round(height * dpr);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const g = this.canvas.getContext("2d") as CanvasRenderingContext2D;
    g.scale(dpr, dpr);
    const bars = this.bars;
    fill(this.note, bars?.note ?? "");
    this.canvas.setAttribute("aria-label", bars ? describe(bars) : "Histogram");
    if (!bars?.counts.length) {
      g.fillStyle = themeColour("descriptionForeground", "#888");
      g.textAlign = "center";
      g.fillText(bars ? "no finite element" : "", width / 2, height / 2);
      return;
    }
    this.drawBars(g, bars, width, height);
  }

  private drawBars(g: CanvasRenderingContext2D, bars: Bars, width: number, height: number): void {
    const { logCounts } = this.model.view;
    const most = Math.max(...bars.counts);
    const tall = (n: number) => (logCounts ? Math.log10(n + 1) / Math.log10(most + 1) : n / most);
    const inner = { w: width - ROOM.left - ROOM.right, h: height - ROOM.top - ROOM.bottom };
    const bottom = ROOM.top + inner.h;
    const foreground = themeColour("foreground", "#888");
    g.strokeStyle = themeColour("editorIndentGuide-background1", "rgba(128,128,128,0.3)");
    g.fillStyle = foreground;
    g.font = `11px ${themeColour("font-family", "sans-serif")}`;
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (const n of countTicks(most, logCounts)) {
      const y = Math.round(bottom - inner.h * tall(n)) + 0.5;
      g.beginPath();
      g.moveTo(ROOM.left, y);
      g.lineTo(ROOM.left + inner.w, y);
      g.stroke();
      g.fillText(formatNumber(n), ROOM.left - 6, y);
    }
    const wide = inner.w / bars.counts.length;
    bars.counts.forEach((n, k) => {
      const x = ROOM.left + k * wide;
      const high = n ? Math.max(1, inner.h * tall(n)) : 0;
      g.fillStyle =
        k === this.at
          ? themeColour("charts-orange", "#d18616")
          : themeColour("charts-blue", "#3794ff");
      g.fillRect(x, bottom - high, Math.max(1, wide - (wide > 3 ? 1 : 0)), high);
    });
    g.fillStyle = foreground;
    g.textBaseline = "top";
    g.textAlign = "center";
    const [low = 0, high = 0] = [bars.edges[0], bars.edges.at(-1)];
    const room = Math.max(1, Math.floor(inner.w / 90));
    const { exponents } = this.model.view;
    const every = Math.max(1, Math.ceil(bars.counts.length / room));
    const ticks = exponents
      ? bars.edges.filter((_, k) => k % every === 0)
      : axisTicks(low, high, room);
    for (const value of ticks) {
      const text = exponents ? `2^${value}` : formatNumber(Number(value.toPrecision(4)));
      const at = ROOM.left + (inner.w * (value - low)) / (high - low || 1);
      // The last one would stand out of the window.
      const most = ROOM.left + inner.w + ROOM.right - g.measureText(text).width / 2;
      g.fillText(text, Math.min(at, most), bottom + 6);
    }
  }
}

function countTicks(most: number, log: boolean): number[] {
  if (log) {
    const found = [0];
    for (let n = 1; n <= most; n *= 10) {
      found.push(n);
    }
    return found;
  }
  const unit = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
  const step = most / unit < 2 ? unit / 2 : most / unit < 5 ? unit : unit * 2;
  const whole = Math.max(1, step);
  return Array.from({ length: Math.floor(most / whole) + 1 }, (_, k) => k * whole);
}

function describe(bars: Bars): string {
  const most = Math.max(0, ...bars.counts);
  const k = bars.counts.indexOf(most);
  return k < 0
    ? bars.note
    : `Histogram. ${bars.note}. Most, ${formatNumber(most)}, are ${bars.label(k)}`;
}
