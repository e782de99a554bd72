/** The page: its state, and what a message, a key or the pointer makes of it. */

import { Arranger, Overtaken } from "./arranger";
import { Drawing, idOf, type Marks, svg } from "./drawing";
import { asPng, asSvg } from "./export";
import type { Asked } from "./layout";
import { type Measure, sizeOf } from "./measure";
import type { Breakpoint, GraphData, Standing, Tainted, ToHost, ToPage } from "./messages";
import { Minimap } from "./minimap";
import {
  type Direction,
  matches,
  nodeAt,
  type Picture,
  picture,
  progress,
  type Shown,
  step,
} from "./model";
import { type ButtonName, element, press, toolbar } from "./toolbar";
import { aboutLink, aboutNode, Tooltip } from "./tooltip";
import { Viewport } from "./viewport";

const MOST = 1000; // nodes that are drawn without being asked for more
const LABELLED = 90; // nodes up to which edges have labels
const WEIGHTY = 120; // nodes from which on weights are folded unless asked for

export interface Kept {
  weights?: boolean;
  across?: boolean;
  follow?: boolean;
  uri?: string;
  graph?: string;
}

export class Page {
  private readonly bar = toolbar();
  private readonly surface = svg("svg", { class: "surface", tabindex: 0, role: "application" });
  private readonly drawing = new Drawing();
  private readonly viewport = new Viewport(this.surface, () => this.moved());
  private readonly minimap = new Minimap(this.drawing, this.viewport);
  private readonly tooltip = new Tooltip();
  private readonly note = element("div", { className: "note", hidden: true });
  private readonly said = element("div", { className: "said" });
  private readonly arranger = new Arranger();
  private readonly measure: Measure;

  private data: GraphData | undefined;
  private path: string[] = [];
  private expanded = new Map<string, GraphData>();
  private picture: Picture = { nodes: [], links: [], whole: 0 };
  private cursor: string | undefined;
  private chosen: string | undefined;
  private words: string[] = [];
  private found: string[] = [];
  private all = false; // of a large graph
  private standing: Standing | null = null;
  private values: Record<string, string> = {};
  private breakpoints: Record<string, Breakpoint[]> = {};
  private tainted: Tainted | null = null;
  private streams: Record<number, number> | null = null;
  private clicked = 0;

  constructor(
    root: HTMLElement,
    private readonly post: (message: ToHost) => void,
    private readonly kept: Kept,
    private readonly keep: (kept: Kept) => void,
  ) {
    this.surface.setAttribute("aria-label", "Data flow. Arrow keys go along the edges.");
    const arrow = svg("marker", {
      id: "arrow",
      viewBox: "0 0 8 8",
      refX: 7,
      refY: 4,
      markerWidth: 7,
      markerHeight: 7,
      orient: "auto-start-reverse",
    });
    arrow.append(svg("path", { d: "M0,0.6L8,4L0,7.4Z", class: "head" }));
    this.surface.append(svg("defs", {}, arrow), this.drawing.root);
    this.said.setAttribute("role", "status");
    root.append(
      this.bar.root,
      element("main", {}, this.surface as unknown as HTMLElement, this.minimap.canvas, this.note),
      this.tooltip.root,
      this.said,
    );
    this.measure = measuring(this.surface);
    this.listen();
    press(this.bar.buttons.across, Boolean(kept.across));
    press(this.bar.buttons.follow, kept.follow ?? true);
    post({ kind: "ready" });
  }

  // --- what the host says ---

  receive(message: ToPage): void {
    switch (message.kind) {
      case "graph":
        this.open(message.data, message.path, message.line);
        break;
      case "expanded":
        this.expanded.set(message.key, message.data);
        this.draw();
        break;
      case "failed":
        this.tell(message.text);
        break;
      case "cursor":
        this.follow(message.uri, message.line);
        break;
      case "standing":
        this.stand(message.standing);
        break;
      case "value":
        this.values[message.name] = message.text;
        this.refresh();
        break;
      case "breakpoints":
        this.breakpoints = message.byUri;
        this.refresh();
        break;
      case "tainted":
        this.tainted = message.tainted;
        this.refresh();
        break;
      case "streams":
        this.streams = message.byLine;
        press(this.bar.buttons.streams, message.byLine !== null);
        this.say(message.text);
        this.refresh();
        break;
      case "command":
        this.command(message.command);
        break;
    }
  }

  private open(data: GraphData, path: string[], line: number | null): void {
    const same = this.data?.uri === data.uri && this.data.graph === data.graph;
    if (!same) {
      this.expanded.clear();
      this.chosen = this.cursor = undefined;
      this.all = false;
      this.streams = null;
      press(this.bar.buttons.streams, false);
    }
    this.data = data;
    this.path = path;
    this.keep({ ...this.kept, uri: data.uri, graph: data.graph });
    this.crumbs();
    if (line !== null) {
      this.cursor = nodeAt(shownOf(data), data.uri, line)?.key;
    }
    this.draw(same ? "stay" : "fit");
  }

  private follow(uri: string, line: number): void {
    const shown = nodeAt(this.picture.nodes, uri, line);
    if (shown === undefined && this.data?.uri === uri && this.limited) {
      const whole = nodeAt(shownOf(this.data), uri, line);
      if (whole !== undefined) {
        this.cursor = whole.key;
        this.draw("focus");
      }
      return;
    }
    if (shown?.key === this.cursor) {
      return;
    }
    this.cursor = shown?.key;
    this.refresh();
    this.reveal(this.cursor);
  }

  private stand(standing: Standing | null): void {
    this.standing = standing;
    this.values = { ...standing?.values };
    this.refresh();
    if (standing !== null) {
      this.follow(standing.uri, standing.line);
    }
  }

  private command(command: "search" | "fit" | "svg" | "png"): void {
    if (command === "search") {
      this.bar.search.focus();
      this.bar.search.select();
    } else if (command === "fit") {
      this.viewport.fit(this.drawing.size);
    } else {
      void this.save(command);
    }
  }

  // --- drawing ---

  private get limited(): boolean {
    return this.picture.whole > this.picture.nodes.length;
  }

  private async draw(then: "fit" | "stay" | "focus" = "stay"): Promise<void> {
    const data = this.data;
    if (data === undefined) {
      return;
    }
    const weights = this.kept.weights ?? data.nodes.length < WEIGHTY;
    press(this.bar.buttons.weights, weights);
    const next = picture(data, this.expanded, {
      weights,
      most: this.all ? Infinity : MOST,
      focus: this.cursor ?? this.chosen ?? null,
    });
    const slow = window.setTimeout(
      () => this.tell(`Drawing ${next.nodes.length.toLocaleString()} nodes …`, "Stop"),
      400,
    );
    try {
      const arranged = await this.arranger.arrange(this.asked(next));
      const anchor = then === "stay" ? this.anchor() : undefined;
      this.picture = next;
      this.drawing.set(next, arranged, (shown) => this.marks(shown));
      this.tell("");
      this.place(then, anchor);
    } catch (error) {
      if (!(error instanceof Overtaken)) {
        this.tell(
          `The graph could not be drawn: ${error instanceof Error ? error.message : error}`,
        );
      }
    } finally {
      window.clearTimeout(slow);
    }
  }

  private asked(next: Picture): Asked {
    const labelled = next.nodes.length <= LABELLED;
    const first = new Set<string>();
    const makers = new Set(next.nodes.filter((n) => n.node.op !== "").map((n) => n.key));
    return {
      across: Boolean(this.kept.across),
      nodes: next.nodes.map((shown) => ({
        key: shown.key,
        parent: shown.parent,
        frame: shown.frame,
        ...(shown.frame ? { width: 0, height: 0 } : sizeOf(shown, this.measure)),
      })),
      wires: next.links.map((link) => {
        // Of a value that is used several times, one edge has the label; none where the node it
        // comes from is the value.
        const label = labelled && makers.has(link.from) && !first.has(`${link.from} ${link.value}`);
        first.add(`${link.from} ${link.value}`);
        const text = link.type === null ? link.value : `${link.value}: ${link.type}`;
        const width = label ? this.measure(text, false) * 0.9 + 8 : 0;
        return { key: link.key, from: link.from, to: link.to, width, height: label ? 14 : 0 };
      }),
    };
  }

  /** What is to stay where it is when the picture changes: a node and its place in the window. */
  private anchor(): { key: string; x: number; y: number } | undefined {
    const { x, y, scale } = this.viewport.view;
    for (const key of [this.cursor, this.chosen, ...this.picture.nodes.map((n) => n.key)]) {
      const box = key === undefined ? undefined : this.drawing.box(key);
      if (key !== undefined && box !== undefined) {
        return { key, x: box.x * scale + x, y: (box.y - box.height / 2) * scale + y };
      }
    }
    return undefined;
  }

  private place(then: "fit" | "stay" | "focus", anchor?: { key: string; x: number; y: number }) {
    const focus = this.cursor === undefined ? undefined : this.drawing.box(this.cursor);
    const kept = anchor === undefined ? undefined : this.drawing.box(anchor.key);
    const { view } = this.viewport;
    if (then === "stay" && anchor !== undefined && kept !== undefined) {
      const top = kept.y - kept.height / 2;
      this.viewport.set({
        ...view,
        x: anchor.x - kept.x * view.scale,
        y: anchor.y - top * view.scale,
      });
    } else if (then === "focus" && focus !== undefined) {
      this.viewport.center(focus.x, focus.y);
    } else {
      this.viewport.fit(this.drawing.size);
      // Too small to be read: at the beginning, or where the cursor is.
      if (this.viewport.view.scale < 0.45) {
        const { width, height } = this.drawing.size;
        const at = focus ?? (this.kept.across ? { x: 0, y: height / 2 } : { x: width / 2, y: 0 });
        this.viewport.center(at.x, at.y, 0.8);
        if (focus === undefined) {
          const size = this.viewport.size;
          this.viewport.pan(
            this.kept.across ? -size.width / 2 + 20 : 0,
            this.kept.across ? 0 : -size.height / 2 + 20,
          );
        }
      }
    }
    this.search(false);
    this.moved();
    this.standingNote();
  }

  private moved(): void {
    const { x, y, scale } = this.viewport.view;
    this.drawing.root.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
    this.surface.classList.toggle("far", scale < 0.35);
    this.drawing.show(this.viewport.part());
    this.minimap.paint();
  }

  private refresh(): void {
    this.drawing.refresh();
    this.minimap.paint();
    const shown = this.shown(this.chosen);
    if (shown !== undefined) {
      this.tooltip.update(shown.key, () => aboutNode(shown, this.marks(shown)));
    }
  }

  private marks(shown: Shown): Marks {
    const [first, last] = shown.node.lines;
    const own = this.data?.uri === shown.uri && this.data.graph === shown.graph;
    const at = (line: number) => first <= line && line <= last;
    const breakpoint = (this.breakpoints[shown.uri] ?? []).find((b) => at(b.line));
    const nan = this.tainted?.uri === shown.uri ? this.tainted.lines : {};
    const bad = Object.entries(nan).find(([line]) => at(Number(line)));
    const stands = this.standing?.uri === shown.uri && this.standing.graph === shown.graph;
    const found = this.found.includes(shown.key);
    return {
      progress: progress(shown, this.standing),
      cursor: shown.key === this.cursor,
      chosen: shown.key === this.chosen,
      found,
      faded: this.words.length > 0 && !found,
      tainted: bad === undefined || shown.node.kind === "input" ? null : bad[1],
      stream: own && this.streams !== null ? (this.streams[first] ?? null) : null,
      breakpoint: !breakpoint
        ? null
        : !breakpoint.enabled
          ? "off"
          : breakpoint.special
            ? "special"
            : "on",
      live: stands ? this.values : null,
    };
  }

  // --- what people do ---

  private listen(): void {
    const { surface } = this;
    surface.addEventListener("click", (event) => this.click(event));
    surface.addEventListener("dblclick", (event) => {
      const shown = this.under(event);
      if (shown !== undefined && this.act(event) === undefined) {
        this.enter(shown);
      }
    });
    surface.addEventListener("pointermove", (event) => this.hover(event));
    surface.addEventListener("pointerleave", () => this.tooltip.hide());
    surface.addEventListener("keydown", (event) => this.key(event));
    surface.addEventListener("blur", () => this.tooltip.hide());
    window.addEventListener("keydown", (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key === "f") {
        event.preventDefault();
        event.stopPropagation();
        this.command("search");
      }
    });
    new ResizeObserver(() => this.moved()).observe(surface);
    this.bar.search.addEventListener("input", () => this.search(true));
    this.bar.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        this.next(event.shiftKey ? -1 : 1);
      } else if (event.key === "Escape") {
        this.bar.search.value = "";
        this.search(false);
        surface.focus();
      }
    });
    this.bar.graphs.addEventListener("change", () => {
      this.post({ kind: "choose", graph: this.bar.graphs.value });
    });
    for (const [name, button] of Object.entries(this.bar.buttons)) {
      button.addEventListener("click", () => this.button(name as ButtonName, button));
    }
  }

  private button(name: ButtonName, button: HTMLButtonElement): void {
    const on = button.getAttribute("aria-pressed") !== "true";
    const actions: Record<ButtonName, () => void> = {
      previous: () => this.next(-1),
      next: () => this.next(1),
      weights: () => this.option({ weights: on }),
      across: () => this.option({ across: on }),
      streams: () => this.post({ kind: "streams", on }),
      follow: () => {
        this.option({ follow: on });
        this.post({ kind: "follow", on });
      },
      out: () => this.viewport.zoom(1 / 1.25),
      in: () => this.viewport.zoom(1.25),
      fit: () => this.viewport.fit(this.drawing.size),
      svg: () => void this.save("svg"),
      png: () => void this.save("png"),
    };
    actions[name]();
  }

  private option(option: Kept): void {
    Object.assign(this.kept, option);
    this.keep(this.kept);
    press(this.bar.buttons.across, Boolean(this.kept.across));
    press(this.bar.buttons.follow, this.kept.follow ?? true);
    if (option.follow === undefined) {
      void this.draw(option.across === undefined ? "stay" : "fit");
    }
  }

  private under(event: Event): Shown | undefined {
    const at = event.target instanceof Element ? event.target.closest("[data-key]") : null;
    return this.shown(at?.getAttribute("data-key") ?? undefined);
  }

  private act(event: Event): string | undefined {
    const at = event.target instanceof Element ? event.target.closest("[data-act]") : null;
    return at?.getAttribute("data-act") ?? undefined;
  }

  private shown(key: string | undefined): Shown | undefined {
    return key === undefined ? undefined : this.picture.nodes.find((n) => n.key === key);
  }

  private click(event: MouseEvent): void {
    this.surface.focus();
    const shown = this.under(event);
    const act = this.act(event);
    if (shown === undefined) {
      this.choose(undefined);
    } else if (act === "breakpoint") {
      this.toggle(shown);
    } else if (act === "expand" || act === "collapse") {
      this.expand(shown);
    } else if (act === "enter") {
      this.enter(shown);
    } else {
      this.choose(shown.key);
      // The second click of two goes into a call: the first one's jump would take the panel's focus.
      window.clearTimeout(this.clicked);
      if (event.detail === 1) {
        this.clicked = window.setTimeout(
          () => this.go(shown, false),
          shown.node.calls.length > 0 ? 250 : 0,
        );
      }
    }
  }

  private go(shown: Shown, focus: boolean): void {
    const { lines, column } = shown.node;
    this.post({ kind: "goto", uri: shown.uri, line: lines[0], column, focus });
  }

  private enter(shown: Shown): void {
    const [graph] = shown.node.calls;
    if (graph !== undefined) {
      window.clearTimeout(this.clicked);
      this.post({ kind: "enter", graph, uri: shown.uri });
    }
  }

  private expand(shown: Shown): void {
    if (shown.frame) {
      for (const key of [...this.expanded.keys()]) {
        if (key === shown.key || key.startsWith(`${shown.key}/`)) {
          this.expanded.delete(key);
        }
      }
      void this.draw();
    } else if (shown.node.calls.length === 1) {
      const [graph = ""] = shown.node.calls;
      this.post({ kind: "expand", key: shown.key, graph, uri: shown.uri });
    }
  }

  private toggle(shown: Shown): void {
    const [line, last] = shown.node.lines;
    this.post({ kind: "breakpoint", uri: shown.uri, line, last });
  }

  private hover(event: PointerEvent): void {
    const at = { x: event.clientX, y: event.clientY };
    const shown = this.under(event);
    const link = event.target instanceof Element ? event.target.getAttribute("data-link") : null;
    if (event.buttons !== 0 || (shown === undefined && link === null)) {
      this.tooltip.hide();
    } else if (shown !== undefined) {
      this.tooltip.later(shown.key, at, () => this.about(shown));
    } else {
      const found = this.picture.links.find((l) => l.key === link);
      this.tooltip.later(`link ${link}`, at, () => found && aboutLink(found));
    }
  }

  /** What the tooltip says; statistics that nobody has asked for yet are asked for. */
  private about(shown: Shown): HTMLElement[] {
    const marks = this.marks(shown);
    for (const { name } of shown.node.values) {
      if (marks.live?.[name] !== undefined) {
        this.post({ kind: "inspect", name });
      }
    }
    return aboutNode(shown, marks);
  }

  private key(event: KeyboardEvent): void {
    const shown = this.shown(this.chosen);
    const arrows: Record<string, Direction> = {
      ArrowUp: "up",
      ArrowDown: "down",
      ArrowLeft: "left",
      ArrowRight: "right",
    };
    const keys: Record<string, () => void> = {
      Enter: () => shown && (event.ctrlKey ? this.enter(shown) : this.go(shown, true)),
      e: () => shown && this.expand(shown),
      o: () => shown && this.enter(shown),
      b: () => shown && this.toggle(shown),
      t: () =>
        shown?.node.values[0] && this.post({ kind: "tensor", name: shown.node.values[0].name }),
      f: () => this.viewport.fit(this.drawing.size),
      "+": () => this.viewport.zoom(1.25),
      "=": () => this.viewport.zoom(1.25),
      "-": () => this.viewport.zoom(1 / 1.25),
      Home: () => this.choose(this.cursor ?? this.picture.nodes[0]?.key),
      Backspace: () =>
        this.path.length > 1 && this.post({ kind: "back", to: this.path.length - 2 }),
      Escape: () => this.choose(undefined),
    };
    const direction = arrows[event.key];
    if (direction !== undefined && !event.ctrlKey && !event.altKey && !event.metaKey) {
      this.walk(direction);
    } else if (keys[event.key] !== undefined && !event.altKey && !event.metaKey) {
      keys[event.key]?.();
    } else {
      return;
    }
    event.preventDefault();
  }

  private walk(direction: Direction): void {
    const nodes = this.drawing.boxes.filter(({ shown }) => !shown.frame);
    const placed = nodes.map(({ shown, box }) => ({ key: shown.key, x: box.x, y: box.y }));
    const from = placed.find((n) => n.key === (this.chosen ?? this.cursor)) ?? undefined;
    if (from === undefined || this.chosen === undefined) {
      this.choose(from?.key ?? placed[0]?.key);
      return;
    }
    const to = step(from, direction, placed, this.picture.links, Boolean(this.kept.across));
    if (to !== undefined) {
      this.choose(to);
    }
  }

  private choose(key: string | undefined): void {
    this.chosen = key;
    this.reveal(key);
    this.refresh();
    if (key === undefined) {
      this.surface.removeAttribute("aria-activedescendant");
    } else {
      this.surface.setAttribute("aria-activedescendant", idOf(key));
      this.say(this.drawing.element(key)?.getAttribute("aria-label") ?? "");
    }
  }

  private reveal(key: string | undefined): void {
    const box = key === undefined ? undefined : this.drawing.box(key);
    if (box !== undefined) {
      this.viewport.reveal(box);
    }
  }

  // --- search ---

  private search(jump: boolean): void {
    this.words = this.bar.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found =
      this.words.length === 0 ? [] : this.picture.nodes.filter((n) => matches(n, this.words));
    this.found = found.map((n) => n.key);
    const { buttons, count } = this.bar;
    buttons.next.disabled = buttons.previous.disabled = found.length === 0;
    count.textContent = this.words.length === 0 ? "" : `${found.length} found`;
    if (jump && this.found[0] !== undefined) {
      this.choose(this.found[0]);
    }
    this.refresh();
  }

  private next(by: number): void {
    const { found } = this;
    if (found.length > 0) {
      const at = this.chosen === undefined ? -1 : found.indexOf(this.chosen);
      const to = (at + by + found.length) % found.length;
      this.choose(found[at < 0 && by < 0 ? found.length - 1 : to]);
      this.bar.count.textContent = `${to + 1} of ${found.length}`;
    }
  }

  // --- the rest of the page ---

  private crumbs(): void {
    const last = this.path.length - 1;
    this.bar.path.replaceChildren(
      ...this.path.flatMap((name, k) => {
        if (k === last) {
          const here = element("span", { className: "here", textContent: name });
          here.setAttribute("aria-current", "true");
          return [here];
        }
        const back = element("button", {
          type: "button",
          textContent: name,
          title: `Back to ${name}`,
        });
        back.addEventListener("click", () => this.post({ kind: "back", to: k }));
        return [back, element("span", { className: "then", textContent: "›" })];
      }),
    );
    const names = this.data?.graphs ?? [];
    this.bar.graphs.hidden = names.length < 2;
    this.bar.graphs.replaceChildren(
      ...names.map((name) => element("option", { value: name, textContent: name })),
    );
    this.bar.graphs.value = this.data?.graph ?? "";
  }

  /** Says that a part is shown, where that is so. */
  private standingNote(): void {
    if (this.limited) {
      const { nodes, whole } = this.picture;
      const some = nodes.length.toLocaleString();
      this.tell(`${some} of ${whole.toLocaleString()} nodes, those around the cursor`, "Draw all");
    } else if (this.data?.nodes.length === 0) {
      this.tell("The graph is empty");
    }
  }

  private tell(text: string, act?: "Draw all" | "Stop"): void {
    this.note.hidden = text === "";
    this.note.replaceChildren(text);
    if (act !== undefined) {
      const button = element("button", { type: "button", textContent: act });
      button.addEventListener("click", () => {
        if (act === "Stop") {
          this.arranger.cancel();
          this.all = false;
          void this.draw("focus");
        } else {
          this.all = true;
          void this.draw("focus");
        }
      });
      this.note.append(" ", button);
    }
  }

  private say(text: string): void {
    this.said.textContent = text;
  }

  private async save(format: "svg" | "png"): Promise<void> {
    // What is chosen, and where the cursor is, is no part of the picture.
    const { chosen, cursor } = this;
    this.chosen = this.cursor = undefined;
    this.refresh();
    try {
      const data =
        format === "svg"
          ? asSvg(this.drawing, this.surface)
          : await asPng(this.drawing, this.surface);
      this.post({ kind: "export", format, data });
    } catch (error) {
      this.tell(
        `The picture could not be saved: ${error instanceof Error ? error.message : error}`,
      );
    }
    [this.chosen, this.cursor] = [chosen, cursor];
    this.refresh();
    this.moved();
  }
}

/** The nodes of a graph as they are before anything is opened or left out. */
function shownOf(data: GraphData): Shown[] {
  return picture(data, new Map(), { weights: true, most: Infinity, focus: null }).nodes;
}

function measuring(surface: SVGSVGElement): Measure {
  const context = document.createElement("canvas").getContext("2d");
  const known = new Map<string, number>();
  return (text, bold) => {
    const key = `${bold} ${text}`;
    let width = known.get(key);
    if (width === undefined) {
      const { fontFamily } = getComputedStyle(surface);
      if (context !== null) {
        context.font = bold ? `600 12px ${fontFamily}` : `11px ${fontFamily}`;
      }
      width = context?.measureText(text).width ?? text.length * 7;
      known.set(key, width);
    }
    return width;
  };
}
