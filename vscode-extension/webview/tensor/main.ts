/** The Tensor view's page. */

import { messageOf } from "../../shared/errors";
import type { FrameLocation, HostMessage, PageMessage } from "../../shared/tensor/messages";
import { elementExpression, partExpression, wholePart } from "../../shared/tensor/parts";
import { fill, h } from "../dom";
import { Connection, LatestOnly, Outdated } from "./connection";
import { Controls, tilesNote } from "./controls";
import { formatNumber } from "./dom";
import { ElementEditor } from "./elementEditor";
import { NAN, UNWRITTEN } from "./elements";
import { HistogramView } from "./histogram";
import { History } from "./history";
import { Model, nameOf, numberOf } from "./model";
import { NonFinite } from "./nonfinite";
import { npyOf } from "./npy";
import { Pictures } from "./pictures";
import { Pins } from "./pins";
import { Table } from "./table";

const OPEN_TIMEOUT_MS = 3000; // in which the page is told what to show, else it asks again

class Page {
  private readonly vscode = acquireVsCodeApi<{ expression: string }>();
  private readonly connection = new Connection((message: PageMessage) =>
    this.vscode.postMessage(message),
  );
  private readonly model = new Model();
  private readonly hover = h("output", {
    class: "hover",
    "data-hint": "Point at an element, or a bar, to read it.",
  });
  private readonly live = h("div", { class: "unseen", "aria-live": "polite" });
  private readonly message = h("div", { class: "trouble", role: "status" });
  private readonly statistics = h("div", { class: "figures" });
  private readonly pins: Pins;
  private readonly main = h("main", {});
  private readonly newest = new LatestOnly();
  private readonly controls: Controls;
  private readonly pictures: Pictures;
  private readonly table: Table;
  private readonly histogram: HistogramView;
  private readonly history: History;
  private readonly nonFinite: NonFinite;
  private readonly editor: ElementEditor;
  /** The element that is told at the bottom of the picture. */
  private hoverIndex: number[] | undefined;
  /** The element that was asked for last. */
  private lastRead: { place: number[]; text: string } | undefined;
  private openedAt = 0;
  private isOpen = false;

  constructor(root: HTMLElement) {
    const { model, connection } = this;
    this.controls = new Controls(model, {
      subject: (expression) => this.changeSubject(expression),
      pin: (pinned) => connection.post({ kind: "pin", pinned }),
      reveal: () => connection.post({ kind: "reveal" }),
      changed: (what) => this.changed(what),
      save: (what) => void this.save(what),
      nanReport: () => connection.post({ kind: "nan" }),
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
    this.editor = new ElementEditor(model, connection, this.hover, (error) => {
      this.pictures.now.canvas.focus();
      this.hovered(model.cursor);
      if (error) {
        this.failed(error);
      }
    });
    this.table = new Table(model, connection, { chosen: (place) => this.choose(place), failed });
    this.histogram = new HistogramView(model, connection, {
      failed,
      hovered: (text) => {
        this.hover.textContent = text;
      },
    });
    this.history = new History(model, connection, () => this.saveView());
    this.pins = new Pins(
      model,
      connection,
      (place) => this.goTo(place),
      () => this.pictures.redraw(),
    );
    this.nonFinite = new NonFinite(model, connection, {
      goTo: (place) => this.goTo(place),
      failed,
    });
    fill(
      root,
      this.controls.head,
      this.controls.axes,
      this.controls.tools,
      this.message,
      this.main,
      this.pins.node,
      h("footer", {}, this.hover, this.nonFinite.node),
      h("div", { class: "bottom" }, this.statistics, this.history.node),
      this.live,
    );
    window.addEventListener("message", (event: MessageEvent<HostMessage>) =>
      this.receive(event.data),
    );
    window.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.resized()).observe(this.main);
    new MutationObserver(() => this.themed()).observe(document.body, {
      attributeFilter: ["class", "style"],
    });
    connection.post({ kind: "ready" });
    window.setTimeout(() => {
      if (!this.isOpen) {
        connection.post({ kind: "ready" });
      }
    }, OPEN_TIMEOUT_MS);
  }

  // --- messages from the host ---

  private receive(message: HostMessage): void {
    switch (message.kind) {
      case "answer":
        this.connection.answered(message);
        break;
      case "open":
        this.open(message);
        break;
      case "stop":
        this.stopped(message.location);
        break;
      case "show":
        this.goTo(message.index);
        break;
      default:
        this.model.state = message.kind;
        this.updateState();
    }
  }

  private open(message: Extract<HostMessage, { kind: "open" }>): void {
    const { model } = this;
    this.isOpen = true;
    this.openedAt = performance.now();
    performance.mark("opened");
    model.subject = message.subject;
    model.restoreView(message.view);
    model.pins = [];
    this.hoverIndex = undefined;
    this.showHover();
    model.cursor = undefined;
    model.statistics = undefined;
    this.setLocation(message.location);
    this.vscode.setState({ expression: message.subject.expression });
    model.error = message.error ?? "";
    if (message.type) {
      model.setType(message.type);
    } else {
      model.type = undefined;
    }
    this.arrange();
    if (message.type && message.first && model.view.mode === "picture") {
      this.pictures.take(message.first.slice, message.first.part);
    }
    if (message.type) {
      this.refresh();
      if (message.subject.index) {
        this.goTo(message.subject.index);
      }
    }
    this.updateState();
  }

  private setLocation(location: FrameLocation): void {
    this.model.location = location;
    this.connection.turn = location.turn;
    this.model.state = "stopped";
  }

  /** The run stands elsewhere, or something was set: the same view of what is there now. */
  private stopped(place: FrameLocation): void {
    this.setLocation(place);
    this.newest.run(async () => {
      try {
        const type = await this.connection.call("type", {
          expression: this.model.subject.expression,
        });
        const before = this.model.type?.type;
        this.model.setType(type);
        this.model.error = "";
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
      this.updateState();
    });
  }

  /** Asks for everything that is shown. */
  private refresh(): void {
    this.view.want();
    void this.fetchStatistics();
    this.history.want();
    void this.pins.refresh();
  }

  private get view(): { want(): void } {
    return { picture: this.pictures, table: this.table, histogram: this.histogram }[
      this.model.view.mode
    ];
  }

  private async fetchStatistics(): Promise<void> {
    const { model } = this;
    try {
      const { expression } = model.subject;
      const result = await this.connection.call("statistics", { expression });
      model.statistics = result.statistics;
      if (model.view.scale.over === "whole") {
        this.pictures.paint();
      }
    } catch (error) {
      if (error instanceof Outdated) {
        return;
      }
      model.statistics = undefined;
    }
    this.nonFinite.reset();
    this.showStatistics();
  }

  private showStatistics(): void {
    const f = this.model.statistics;
    const names = ["mean", "std", "min", "max", "absmax", "l2"] as const;
    const values = f ? names.map((n) => [n, numberOf(f[n])] as const) : [];
    fill(
      this.statistics,
      ...values
        .filter(([, v]) => v !== undefined)
        .map(([n, v]) => h("span", {}, `${n} `, h("b", {}, formatNumber(v)))),
      f && h("span", {}, "elements ", h("b", {}, formatNumber(f.count))),
      f && !f.nan && !f.posinf && !f.neginf && !f.unwritten && h("span", {}, "all finite"),
      f && f.zero > 0 && h("span", {}, "zeros ", h("b", {}, formatNumber(f.zero))),
      f && f.subnormal > 0 && h("span", {}, "subnormal ", h("b", {}, formatNumber(f.subnormal))),
    );
    this.statistics.title = this.statistics.textContent ?? "";
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
    this.pins.show();
    const empty = this.model.type && this.model.shape.includes(0);
    this.main.classList.toggle("empty", Boolean(empty));
    if (mode === "picture") {
      this.pictures.layOut();
    } else if (mode === "table") {
      this.table.update();
    }
  }

  private changed(what: "fetch" | "paint" | "layout"): void {
    this.saveView();
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
    this.updateState();
  }

  private saveView(): void {
    const { subject, view } = this.model;
    this.connection.post({ kind: "view", expression: subject.expression, view });
  }

  private changeSubject(expression: string): void {
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

  private updateState(): void {
    const { model } = this;
    const goes = { running: "the run goes on", ended: "the run has ended", stopped: "" }[
      model.state
    ];
    const tiles = model.view.mode === "picture" && tilesNote(model, this.pictures.grid.count);
    const notes = [model.type?.note, tiles].filter(Boolean).join("; ");
    this.message.textContent = model.error || goes || notes;
    this.message.classList.toggle("error", Boolean(model.error));
    document.body.classList.toggle("stale", Boolean(model.error) || model.state === "ended");
  }

  private failed(text: string): void {
    this.model.error = text;
    this.updateState();
  }

  private painted(): void {
    if (this.openedAt) {
      performance.mark("painted");
      this.connection.post({ kind: "painted", milliseconds: performance.now() - this.openedAt });
      this.openedAt = 0;
    }
    if (this.hoverIndex) {
      this.showHover(); // what stands there may have changed
    }
    this.updateState();
  }

  // --- elements ---

  private hovered(place: number[] | undefined): void {
    this.hoverIndex = place;
    this.showHover();
  }

  /** Says what the element under the pointer, or the cursor, is now. */
  private showHover(): void {
    if (this.editor.open) {
      return; // somebody types there
    }
    const place = this.hoverIndex;
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
    await this.readElement(place);
    const { lastRead } = this;
    if (lastRead && lastRead.place === place && this.model.state === "stopped") {
      this.editor.begin(place, lastRead.text);
    }
  }

  /** An element is chosen: by keys, or in the table. */
  private choose(place: number[]): void {
    this.model.cursor = place;
    if (this.model.view.mode === "picture") {
      this.pictures.goTo(place);
      this.hovered(place);
      this.live.textContent = this.hover.textContent;
    } else {
      this.hover.textContent = `[${place.join(", ")}]`;
    }
  }

  /** Brings an element into sight, wherever the sliders stand. */
  private goTo(place: number[]): void {
    const { model } = this;
    if (place.length !== model.shape.length) {
      return;
    }
    model.cursor = place;
    this.hoverIndex = undefined; // it is asked for exactly
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
      this.table.goTo(place);
    } else {
      this.pictures.goTo(place);
    }
    void this.readElement(place);
  }

  private async readElement(place: number[]): Promise<void> {
    try {
      const { expression } = this.model.subject;
      const slice = await this.connection.call("slice", {
        expression: elementExpression(expression, place),
      });
      this.lastRead = { place, text: this.model.elements(slice).text(0) };
      this.hover.textContent = `[${place.join(", ")}] = ${this.lastRead.text}`;
      this.live.textContent = this.hover.textContent;
    } catch {
      // The element is gone with its stop: what is lastRead of the tensor says so.
    }
  }

  private onKey(event: KeyboardEvent): void {
    const typing = (event.target as Element).matches("input, select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    if (event.key === "n" || event.key === "N") {
      const by = event.key === "N" ? -1 : 1;
      const f = this.model.statistics;
      const onlyUnwritten = f && f.unwritten !== undefined && f.nan === f.unwritten;
      void this.nonFinite.next(onlyUnwritten ? UNWRITTEN : NAN, by);
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
