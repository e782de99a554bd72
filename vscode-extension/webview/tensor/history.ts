/** A figure of the tensor over the steps of a run, as a small line. */

import type { HistoryEntry, Statistics } from "../../shared/tensor/messages";
import { fill, h, themeColour } from "../dom";
import { type Connection, LatestOnly, Outdated } from "./connection";
import { chooser, formatNumber } from "./dom";
import { type Model, numberOf } from "./model";

const STATISTICS = [
  "mean",
  "std",
  "min",
  "max",
  "absmax",
  "l2",
  "nan",
  "posinf",
  "neginf",
  "zero",
] as const;
const MOST = 500; // entries that are asked for

export class History {
  private readonly canvas = h("canvas", { role: "img" });
  private readonly output = h("output", {});
  readonly node = h("div", { class: "history" });
  private entries: HistoryEntry[] = [];
  private readonly newest = new LatestOnly();

  constructor(
    private readonly model: Model,
    private readonly connection: Connection,
    private readonly changed: () => void,
  ) {
    this.canvas.addEventListener("pointermove", (e) => this.point(e.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.update());
  }

  want(): void {
    this.newest.run(() => this.fetch());
  }

  private async fetch(): Promise<void> {
    const { expression, memoryReference } = this.model.subject;
    this.entries = [];
    if (
      !this.model.isPython &&
      !memoryReference &&
      /^(?:[A-Za-z_][\w.]*|`[^`]+`)$/.test(expression)
    ) {
      try {
        this.entries = (
          await this.connection.call("history", { name: expression, count: MOST })
        ).entries;
      } catch (error) {
        if (error instanceof Outdated) {
          return;
        }
      }
    }
    this.update();
  }

  update(): void {
    this.node.hidden = this.entries.length < 2;
    if (this.node.hidden) {
      return;
    }
    const { view } = this.model;
    if (!this.node.firstChild) {
      const choices = STATISTICS.map((value) => ({ value, label: value }));
      const select = chooser(
        "over steps",
        choices,
        view.statistic as (typeof STATISTICS)[number],
        (figure) => {
          view.statistic = figure;
          this.changed();
          this.update();
        },
      );
      fill(this.node, select, this.canvas, this.output);
    }
    this.draw();
    this.label(this.entries.length - 1);
  }

  private values(): number[] {
    const figure = this.model.view.statistic as keyof Statistics;
    return this.entries.map((e) => numberOf(e.statistics[figure] as number | string) ?? Number.NaN);
  }

  private point(x: number): void {
    const k = Math.round((x / this.canvas.clientWidth) * (this.entries.length - 1));
    if (this.entries[k]) {
      this.draw(k);
      this.label(k);
    }
  }

  private label(k: number): void {
    const entry = this.entries[k];
    const where = entry?.step !== undefined ? `step ${entry.step}` : `version ${k}`;
    this.output.textContent = `${where}: ${this.model.view.statistic} ${formatNumber(this.values()[k])}`;
  }

  private draw(at = this.entries.length - 1): void {
    const dpr = window.devicePixelRatio || 1;
    const width = 180;
    const height = 30;
    this.canvas.width = width * dpr;
    this.canvas.height = height * dpr;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const values = this.values();
    const finite = values.filter(Number.isFinite);
    const low = Math.min(...finite);
    const high = Math.max(...finite);
    const x = (k: number) => 3 + (k / (values.length - 1)) * (width - 6);
    const y = (v: number) =>
      high > low ? 3 + ((high - v) / (high - low)) * (height - 6) : height / 2;
    const g = this.canvas.getContext("2d") as CanvasRenderingContext2D;
    g.scale(dpr, dpr);
    g.strokeStyle = themeColour("charts-blue", "#3794ff");
    g.lineWidth = 1.5;
    g.beginPath();
    let pen = false;
    values.forEach((v, k) => {
      if (!Number.isFinite(v)) {
        pen = false;
      } else if (pen) {
        g.lineTo(x(k), y(v));
      } else {
        g.moveTo(x(k), y(v));
        pen = true;
      }
    });
    g.stroke();
    g.fillStyle = themeColour("charts-red", "#f14c4c");
    values.forEach((v, k) => {
      if (!Number.isFinite(v)) {
        g.fillRect(x(k) - 1, 0, 2, height); // no number: a bar from top to bottom
      }
    });
    const v = values[at];
    if (v !== undefined && Number.isFinite(v)) {
      g.fillStyle = themeColour("charts-orange", "#d18616");
      g.beginPath();
      g.arc(x(at), y(v), 3, 0, 2 * Math.PI);
      g.fill();
    }
    this.canvas.setAttribute(
      "aria-label",
      `${this.model.view.statistic} over ${values.length} steps, ${formatNumber(low)} to ${formatNumber(high)}`,
    );
  }
}
