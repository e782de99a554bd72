/** The Tensor view's page. */

import { messageOf } from "../../shared/errors";
import type { FromPage, Place, ToPage } from "../../shared/tensor/messages";
import { elementExpression, partExpression, wholePart } from "../../shared/tensor/parts";
import { fill, h } from "../dom";
import { Connection, Newest, Outdated } from "./connection";
import { Controls, tilesNote } from "./controls";
import { shown } from "./dom";
import { Setting } from "./elementEditor";
import { NAN, UNWRITTEN } from "./elements";
import { HistogramView } from "./histogram";
import { History } from "./history";
import { Model, nameOf, numberOf } from "./model";
import { Odd } from "./nonfinite";
import { npyOf } from "./npy";
import { Pictures } from "./pictures";
import { Pins } from "./pins";
import { Table } from "./table";

const PATIENCE_MS = 3000; // in which the page is told what to show, else it asks again

class Page {
  private readonly vscode = acquireVsCodeApi<{ expression: string }>();
  private readonly connection = new Connection((message: FromPage) =>
    this.vscode.postMessage(message),
  );
  private readonly model = new Model();
  private readonly hover = h("output", { class: "hover" });
  private readonly live = h("div", { class: "unseen", "aria-live": "polite" });
  private readonly trouble = h("div", { class: "trouble", role: "status" });
  private readonly figures = h("div", { class: "figures" });
  private readonly pins: Pins;
  private readonly main = h("main", {});
  private readonly newest = new Newest();
  private readonly controls: Controls;
  private readonly pictures: Pictures;
  private readonly table: Table;
  private readonly histogram: HistogramView;
  private readonly history: History;
  private readonly odd: Odd;
  private readonly setting: Setting;
  /** The element that is told at the bottom of the picture. */
  private over: number[] | undefined;
  /** The element that was asked for last. */
  private said: { place: number[]; text: string } | undefined;
  private opened = 0;
  private told = false;

  constructor(root: HTMLElement) {
    const { model, connection } = this;
    this.controls = new Controls(model, {
      subject: (expression) => this.another(expression),
      pin: (pinned) => connection.post({ kind: "pin", pinned }),
      reveal: () => connection.post({ kind: "reveal" }),
      changed: (what) => this.changed(what),
      save: (what) => void this.save(what),
      nans: () => connection.post({ kind: "nan" }),
      fit: () => this.pictures.fit(),
    });
    const failed = (text: string) => this.failed(text);
    this.pictures = new Pictures(model, connection, {
      hovered: (place) => this.hovered(place),
      chosen: (place) => this.choose(place),
      pinned: (place) => this.pins.toggle(place),
      edited: (place) => void this.edit(place),
      failed,
      painted: () => this.painted(),
    });
    this.setting = new Setting(model, connection, this.hover, (trouble) => {
      this.pictures.now.canvas.focus();
      this.hovered(model.cursor);
      if (trouble) {
        this.failed(trouble);
      }
    });
    this.table = new Table(model, connection, { chosen: (place) => this.choose(place), failed });
    this.histogram = new HistogramView(model, connection, {
      failed,
      told: (text) => {
        this.hover.textContent = text;
      },
    });
    this.history = new History(model, connection, () => this.keep());
    this.pins = new Pins(
      model,
      connection,
      (place) => this.look(place),
      () => this.pictures.redraw(),
    );
    this.odd = new Odd(model, connection, { look: (place) => this.look(place), failed });
    fill(
      root,
      this.controls.head,
      this.controls.axes,
      this.controls.tools,
      this.trouble,
      this.main,
      this.pins.node,
      h("footer", {}, this.hover, h("span", { class: "space" }), this.odd.node),
      h("div", { class: "bottom" }, this.figures, this.history.node),
      this.live,
    );
    window.addEventListener("message", (event: MessageEvent<ToPage>) => this.take(event.data));
    window.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resized()).observe(this.main);
    new MutationObserver(() => this.themed()).observe(document.body, {
      attributeFilter: ["class", "style"],
    });
    connection.post({ kind: "ready" });
    window.setTimeout(() => {
      if (!this.told) {
        connection.post({ kind: "ready" });
      }
    }, PATIENCE_MS);
  }

  // --- what the host says ---

  private take(message: ToPage): void {
    switch (message.kind) {
      case "answer":
        this.connection.answered(message);
        break;
      case "open":
        this.open(message);
        break;
      case "stop":
        this.stopped(message.place);
        break;
      case "show":
        this.look(message.place);
        break;
      default:
        this.model.state = message.kind;
        this.state();
    }
  }

  private open(message: Extract<ToPage, { kind: "open" }>): void {
    const { model } = this;
    this.told = true;
    this.opened = performance.now();
    performance.mark("opened");
    model.subject = message.subject;
    model.remember(message.view);
    model.pins = [];
    this.over = undefined;
    this.tell();
    model.cursor = undefined;
    model.figures = undefined;
    this.stand(message.place);
    this.vscode.setState({ expression: message.subject.expression });
    model.trouble = message.error ?? "";
    if (message.type) {
      model.become(message.type);
    } else {
      model.type = undefined;
    }
    this.arrange();
    if (message.type && message.first && model.view.mode === "picture") {
      this.pictures.take(message.first.slice, message.first.part);
    }
    if (message.type) {
      this.refresh();
      if (message.subject.place) {
        this.look(message.subject.place);
      }
    }
    this.state();
  }

  private stand(place: Place): void {
    this.model.place = place;
    this.connection.turn = place.turn;
    this.model.state = "stopped";
  }

  /** The run stands elsewhere, or something was set: the same view of what is there now. */
  private stopped(place: Place): void {
    this.stand(place);
    this.newest.run(async () => {
      try {
        const type = await this.connection.call("type", {
          expression: this.model.subject.expression,
        });
        const before = this.model.type?.type;
        this.model.become(type);
        this.model.trouble = "";
        if (before === type.type) {
          this.controls.update();
        } else {
          this.arrange();
        }
        this.refresh();
      } catch (error) {
        if (!(error instanceof Outdated)) {
          this.failed(messageOf(error));
          this.controls.update();
        }
      }
      this.state();
    });
  }

  /** Asks for everything that is shown. */
  private refresh(): void {
    this.view.want();
    void this.takeFigures();
    this.history.want();
    void this.pins.refresh();
  }

  private get view(): { want(): void } {
    return { picture: this.pictures, table: this.table, histogram: this.histogram }[
      this.model.view.mode
    ];
  }

  private async takeFigures(): Promise<void> {
    const { model } = this;
    try {
      const { expression } = model.subject;
      const told = await this.connection.call("statistics", { expression });
      model.figures = told.statistics;
      if (model.view.scale.over === "whole") {
        this.pictures.paint();
      }
    } catch (error) {
      if (error instanceof Outdated) {
        return;
      }
      model.figures = undefined;
    }
    this.odd.reset();
    this.showFigures();
  }

  private showFigures(): void {
    const f = this.model.figures;
    const names = ["mean", "std", "min", "max", "absmax", "l2"] as const;
    const told = f ? names.map((n) => [n, numberOf(f[n])] as const) : [];
    fill(
      this.figures,
      ...told
        .filter(([, v]) => v !== undefined)
        .map(([n, v]) => h("span", {}, `${n} `, h("b", {}, shown(v)))),
      f && h("span", {}, "elements ", h("b", {}, shown(f.count))),
      f && f.zero > 0 && h("span", {}, "zeros ", h("b", {}, shown(f.zero))),
      f && f.subnormal > 0 && h("span", {}, "subnormal ", h("b", {}, shown(f.subnormal))),
    );
    this.figures.title = this.figures.textContent ?? "";
  }

  // --- arranging ---

  /** Lays out the view that is chosen. */
  private arrange(): void {
    const { mode } = this.model.view;
    const node = { picture: this.pictures, table: this.table, histogram: this.histogram }[mode]
      .node;
    if (this.main.firstChild !== node) {
      fill(this.main, node);
    }
    this.controls.update();
    const empty = this.model.type && this.model.shape.includes(0);
    this.main.classList.toggle("empty", Boolean(empty));
    if (mode === "picture") {
      this.pictures.layOut();
    } else if (mode === "table") {
      this.table.update();
    }
  }

  private changed(what: "fetch" | "paint" | "layout"): void {
    this.keep();
    if (what === "layout") {
      this.arrange();
      this.view.want();
    } else if (what === "paint") {
      this.pictures.paint();
    } else {
      if (this.model.view.mode === "picture") {
        this.pictures.layOut();
      }
      this.view.want();
    }
    this.state();
  }

  private keep(): void {
    const { subject, view } = this.model;
    this.connection.post({ kind: "view", expression: subject.expression, view });
  }

  private another(expression: string): void {
    if (expression && expression !== nameOf(this.model.subject)) {
      this.connection.post({ kind: "subject", expression });
    }
  }

  private resized(): void {
    const { mode } = this.model.view;
    if (mode === "picture") {
      this.pictures.layOut();
      this.pictures.redraw();
      this.pictures.want();
    } else if (mode === "table") {
      this.table.want();
    } else {
      this.histogram.draw();
    }
  }

  private themed(): void {
    this.pictures.redraw();
    if (this.model.view.mode === "histogram") {
      this.histogram.draw();
    }
    this.history.update();
  }

  private state(): void {
    const { model } = this;
    const goes = { running: "the run goes on", ended: "the run has ended", stopped: "" }[
      model.state
    ];
    const note = tilesNote(model, this.pictures.grid.count);
    this.trouble.textContent = model.trouble || goes || (model.view.mode === "picture" ? note : "");
    this.trouble.classList.toggle("error", Boolean(model.trouble));
    document.body.classList.toggle("stale", Boolean(model.trouble) || model.state === "ended");
  }

  private failed(text: string): void {
    this.model.trouble = text;
    this.state();
  }

  private painted(): void {
    if (this.opened) {
      performance.mark("painted");
      this.connection.post({ kind: "painted", milliseconds: performance.now() - this.opened });
      this.opened = 0;
    }
    if (this.over) {
      this.tell(); // what stands there may have changed
    }
    this.state();
  }

  // --- elements ---

  private hovered(place: number[] | undefined): void {
    this.over = place;
    this.tell();
  }

  /** Says what the element under the pointer, or the cursor, is now. */
  private tell(): void {
    if (this.setting.open) {
      return; // somebody types there
    }
    const place = this.over;
    const spot = place && this.pictures.spotOf(place);
    if (!place || !spot) {
      this.hover.textContent = "";
      return;
    }
    const step = this.pictures.now.block?.part.columns.step ?? 1;
    const thin = step > 1 ? `  (each ${step}th row and column is drawn)` : "";
    const named = ["", " earlier ", " difference "];
    const text = this.pictures
      .textsAt(spot)
      .map((t, k) => `${named[k]}${t}`)
      .join("  ");
    this.hover.textContent = `[${place.join(", ")}] = ${text}${thin}`;
  }

  /** Lets an element of the picture be given another value. */
  private async edit(place: number[]): Promise<void> {
    await this.say(place);
    const { said } = this;
    if (said && said.place === place && this.model.state === "stopped") {
      this.setting.begin(place, said.text);
    }
  }

  /** An element is chosen: by keys, or in the table. */
  private choose(place: number[]): void {
    this.model.cursor = place;
    if (this.model.view.mode === "picture") {
      this.pictures.look(place);
      this.hovered(place);
      this.live.textContent = this.hover.textContent;
    } else {
      this.hover.textContent = `[${place.join(", ")}]`;
    }
  }

  /** Brings an element into sight, wherever the sliders stand. */
  private look(place: number[]): void {
    const { model } = this;
    if (place.length !== model.shape.length) {
      return;
    }
    model.cursor = place;
    this.over = undefined; // it is asked for exactly
    model.setAxes({ ...model.axes, at: [...place] });
    if (model.view.mode === "histogram") {
      model.view.mode = "picture";
    }
    const tile = model.axes.tiles < 0 ? 0 : (place[model.axes.tiles] as number);
    if (tile < model.view.firstTile || tile >= model.view.firstTile + 1024) {
      model.view.firstTile = Math.max(0, tile - 512);
    }
    this.arrange();
    if (model.view.mode === "table") {
      this.table.look(place);
    } else {
      this.pictures.look(place);
    }
    void this.say(place);
  }

  private async say(place: number[]): Promise<void> {
    try {
      const { expression } = this.model.subject;
      const slice = await this.connection.call("slice", {
        expression: elementExpression(expression, place),
      });
      this.said = { place, text: this.model.elements(slice).text(0) };
      this.hover.textContent = `[${place.join(", ")}] = ${this.said.text}`;
      this.live.textContent = this.hover.textContent;
    } catch {
      // The element is gone with its stop: what is said of the tensor says so.
    }
  }

  private key(event: KeyboardEvent): void {
    const typing = (event.target as Element).matches("input, select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    if (event.key === "n" || event.key === "N") {
      const by = event.key === "N" ? -1 : 1;
      const f = this.model.figures;
      const onlyUnwritten = f && f.unwritten !== undefined && f.nan === f.unwritten;
      void this.odd.next(onlyUnwritten ? UNWRITTEN : NAN, by);
    } else if (event.key === "Escape") {
      this.model.cursor = undefined;
      this.pictures.redraw();
    }
  }

  // --- files ---

  private async save(what: "png" | "npy"): Promise<void> {
    const name =
      nameOf(this.model.subject)
        .replace(/[^\w.-]+/g, "_")
        .slice(0, 60) || "tensor";
    try {
      const bytes = what === "png" ? await this.png() : await this.npy();
      if (bytes) {
        await this.connection.call("save", { name: `${name}.${what}`, bytes });
      }
    } catch (error) {
      if (!(error instanceof Outdated)) {
        this.failed(messageOf(error));
      }
    }
  }

  private async png(): Promise<Uint8Array | undefined> {
    const canvas = this.main.querySelector("canvas");
    const blob = await new Promise<Blob | null>((done) => canvas?.toBlob(done, "image/png"));
    return blob ? new Uint8Array(await blob.arrayBuffer()) : undefined;
  }

  /** All that the axes show, also what is out of sight. */
  private async npy(): Promise<Uint8Array> {
    const { model } = this;
    const part = wholePart(model.axes, model.shape);
    const expression = partExpression(model.subject.expression, model.shape, part);
    return npyOf(model.elements(await this.connection.call("slice", { expression })));
  }
}

new Page(document.getElementById("root") as HTMLElement);
