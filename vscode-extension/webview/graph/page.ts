/** The page: its state, and what a message, a key or the pointer makes of it. */

import { messageOf } from "../../shared/errors";
import { grouped } from "../../shared/format";
import { callsOf, purpose } from "../../shared/frames";
import type {
  GraphData,
  HostMessage,
  PageMessage,
  PageState,
  PathEntry,
  StopState,
} from "../../shared/graph/messages";
import { h } from "../dom";
import { idOf } from "./drawing";
import { asPng, asSvg } from "./export";
import { Superseded } from "./layoutRunner";
import { Library } from "./library";
import {
  allNodes,
  ancestors,
  type Direction,
  nodeAt,
  nodeInDirection,
  type PictureNode,
  picture,
} from "./model";
import { Note } from "./note";
import { followPointer } from "./pointer";
import { type Placing, Scene } from "./scene";
import { Search } from "./search";
import { State } from "./state";
import { type ButtonName, press, showWhere, toolbar } from "./toolbar";
import { aboutNode, Tooltip } from "./tooltip";

const MOST = 1000; // nodes that are drawn without being asked for more

export class Page {
  private readonly bar = toolbar();
  private readonly state = new State();
  private readonly scene = new Scene(this.state.marks);
  private readonly library = new Library();
  private readonly search = new Search(
    this.bar,
    this.scene,
    this.state,
    (key) => this.choose(key),
    () => this.whole(),
  );
  private readonly tooltip = new Tooltip();
  private readonly note = new Note();
  private readonly announcement = h("div", { class: "said" });
  private path: PathEntry[] = [];
  private expanded = new Map<string, GraphData>();
  private all = false; // of a large graph
  private around: string | undefined; // what a part of it is drawn around, if not the cursor

  constructor(
    root: HTMLElement,
    private readonly post: (message: PageMessage) => void,
    private readonly saved: PageState,
    private readonly saveState: (state: PageState) => void,
  ) {
    this.announcement.setAttribute("role", "status");
    root.append(
      this.bar.root,
      h(
        "main",
        {},
        this.scene.surface as unknown as HTMLElement,
        this.scene.minimap.canvas,
        this.bar.corner,
        this.note.root,
      ),
      this.tooltip.root,
      this.announcement,
    );
    this.listen();
    press(this.bar.buttons.across, Boolean(saved.across));
    press(this.bar.buttons.follow, saved.follow ?? true);
    post({ kind: "ready" });
  }

  // --- messages from the host ---

  receive(message: HostMessage): void {
    switch (message.kind) {
      case "graph":
        this.open(message.data, message.path, message.line);
        break;
      case "library":
        this.library.set(message.graphs);
        this.bar.buttons.follow.hidden = true; // no cursor, no run
        break;
      case "expanded":
        this.expanded.set(message.key, message.data);
        void this.draw("stay", message.key);
        break;
      case "failed":
        this.note.show(message.text);
        break;
      case "cursor":
        this.moveCursor(message.uri, message.line);
        break;
      case "stop":
        this.setStop(message.stop);
        break;
      case "value":
        this.state.values[message.name] = message.text;
        this.refresh();
        break;
      case "breakpoints":
        this.state.breakpoints = message.byUri;
        this.refresh();
        break;
      case "tainted":
        this.state.tainted = message.tainted;
        this.refresh();
        break;
      case "streams":
        this.state.streams = message.byLine;
        press(this.bar.buttons.streams, message.byLine !== null);
        this.announce(message.text);
        this.refresh();
        break;
      case "command":
        this.command(message.command);
        break;
    }
  }

  private open(data: GraphData, path: PathEntry[], line: number | null): void {
    const calls = callsOf(path);
    const same =
      this.state.data?.uri === data.uri &&
      this.state.data.graph === data.graph &&
      calls.join("/") === this.state.calls.join("/");
    this.state.calls = calls;
    const isScript = data.nodes.some((node) => node.now !== undefined);
    this.bar.buttons.streams.hidden = isScript;
    if (isScript) {
      this.expanded.clear(); // its graph is another one at each stop
    }
    if (!same) {
      this.expanded.clear();
      this.state.chosen = this.state.cursor = this.around = undefined;
      this.all = false;
      this.state.streams = null;
      press(this.bar.buttons.streams, false);
    }
    this.state.data = data;
    this.path = path;
    this.saveState({ ...this.saved, uri: data.uri, graph: data.graph });
    showWhere(this.bar, path, data, (to) => this.post({ kind: "back", to }));
    if (line !== null) {
      this.state.cursor = nodeAt(allNodes(data), data.uri, line)?.key;
    }
    this.draw(same ? "stay" : "fit");
  }

  private moveCursor(uri: string, line: number): void {
    const shown = nodeAt(this.scene.picture.nodes, uri, line);
    if (shown === undefined && this.state.data?.uri === uri && this.limited) {
      const whole = nodeAt(allNodes(this.state.data), uri, line);
      if (whole !== undefined) {
        this.state.cursor = whole.key;
        this.around = undefined;
        this.draw("focus");
      }
      return;
    }
    if (shown?.key === this.state.cursor) {
      return;
    }
    this.state.cursor = shown?.key;
    this.refresh();
    this.scene.reveal(this.state.cursor);
  }

  private setStop(stop: StopState | null): void {
    this.state.stop = stop;
    this.state.values = { ...stop?.values };
    this.refresh();
    if (stop !== null) {
      this.moveCursor(stop.uri, stop.line);
    }
  }

  private command(command: "search" | "fit" | "svg" | "png"): void {
    if (command === "search") {
      this.search.focus();
    } else if (command === "fit") {
      this.scene.fit();
    } else {
      void this.exportImage(command);
    }
  }

  // --- drawing ---

  private get limited(): boolean {
    return this.scene.picture.whole > this.scene.picture.nodes.length;
  }

  private async draw(then: Placing = "stay", touched?: string): Promise<void> {
    const data = this.state.data;
    if (data === undefined) {
      return;
    }
    const weights = this.saved.weights ?? false;
    press(this.bar.buttons.weights, weights);
    const next = picture(data, this.expanded, {
      weights,
      most: this.all ? Infinity : MOST,
      focus: this.around ?? this.state.cursor ?? this.state.chosen ?? null,
    });
    const slow = window.setTimeout(
      () =>
        this.note.show(`Drawing ${grouped(next.nodes.length)} nodes …`, "Stop", () => {
          this.scene.cancel();
          this.drawAll(false);
        }),
      400,
    );
    try {
      const { cursor, chosen } = this.state;
      const middle = this.around ?? cursor;
      const places = { touched, cursor: middle, chosen };
      await this.scene.draw(next, Boolean(this.saved.across), then, places);
      this.note.show("");
      this.search.find();
      this.refresh();
      this.noteLimit();
    } catch (error) {
      if (!(error instanceof Superseded)) {
        this.note.show(`The graph could not be drawn: ${messageOf(error)}`);
      }
    } finally {
      window.clearTimeout(slow);
    }
  }

  private drawAll(all: boolean): void {
    this.all = all;
    void this.draw("focus");
  }

  private refresh(): void {
    this.scene.refresh();
    const shown = this.scene.shown(this.state.chosen);
    if (shown !== undefined) {
      this.tooltip.update(shown.key, () => aboutNode(shown, this.state.marks(shown)));
    }
  }

  // --- user input ---

  private listen(): void {
    const { surface } = this.scene;
    followPointer(this.scene, this.tooltip, {
      choose: (key) => this.choose(key),
      toggle: (shown) => this.toggle(shown),
      expand: (shown) => this.expand(shown),
      enter: (shown) => this.enter(shown),
      goToLine: (shown) => this.goToLine(shown, false),
      goTo: ({ uri, line, column }) => this.post({ kind: "goto", uri, line, column, focus: false }),
      about: (shown) => this.tooltipOf(shown),
    });
    surface.addEventListener("keydown", (event) => this.onKey(event));
    surface.addEventListener("blur", () => this.tooltip.hide());
    window.addEventListener("keydown", (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key === "f") {
        event.preventDefault();
        event.stopPropagation();
        this.command("search");
      }
    });
    this.bar.search.addEventListener("input", () => {
      if (!this.search.jump()) {
        this.refresh();
      }
    });
    this.bar.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        this.search.next(event.shiftKey ? -1 : 1);
      } else if (event.key === "Escape") {
        this.search.clear();
        this.refresh();
        surface.focus();
      }
    });
    this.bar.graphs.addEventListener("change", () => {
      this.post({ kind: "choose", graph: this.bar.graphs.value });
    });
    for (const [name, button] of Object.entries(this.bar.buttons)) {
      button.addEventListener("click", () => this.onButton(name as ButtonName, button));
    }
  }

  private onButton(name: ButtonName, button: HTMLButtonElement): void {
    const on = button.getAttribute("aria-pressed") !== "true";
    const actions: Record<ButtonName, () => void> = {
      previous: () => this.search.next(-1),
      next: () => this.search.next(1),
      weights: () => this.setOption({ weights: on }),
      across: () => this.setOption({ across: on }),
      streams: () => this.post({ kind: "streams", on }),
      follow: () => {
        this.setOption({ follow: on });
        this.post({ kind: "follow", on });
      },
      out: () => this.scene.viewport.zoom(1 / 1.25),
      in: () => this.scene.viewport.zoom(1.25),
      fit: () => this.scene.fit(),
      svg: () => void this.exportImage("svg"),
      png: () => void this.exportImage("png"),
    };
    actions[name]();
  }

  private setOption(option: PageState): void {
    Object.assign(this.saved, option);
    this.saveState(this.saved);
    press(this.bar.buttons.across, Boolean(this.saved.across));
    press(this.bar.buttons.follow, this.saved.follow ?? true);
    if (option.follow === undefined) {
      void this.draw(option.across === undefined ? "stay" : "fit");
    }
  }

  private goToLine(shown: PictureNode, focus: boolean): void {
    const { lines, column } = shown.node;
    this.post({ kind: "goto", uri: shown.uri, line: lines[0], column, focus });
  }

  private enter(shown: PictureNode): void {
    const [graph] = shown.node.calls;
    if (graph === undefined) {
      return;
    }
    const path = ancestors(shown, this.scene.picture.nodes).map(({ node, uri }) => {
      const call = node.kind === "call" ? purpose(node) : undefined;
      return { graph: node.calls[0] ?? "", uri, call };
    });
    this.post({ kind: "enter", path });
  }

  private expand(shown: PictureNode): void {
    if (shown.frame) {
      for (const key of [...this.expanded.keys()]) {
        if (key === shown.key || key.startsWith(`${shown.key}/`)) {
          this.expanded.delete(key);
        }
      }
      void this.draw("stay", shown.key);
    } else if (shown.node.calls.length === 1) {
      const [graph = ""] = shown.node.calls;
      this.post({ kind: "expand", key: shown.key, graph, uri: shown.uri });
    }
  }

  private toggle(shown: PictureNode): void {
    const [line, last] = shown.node.lines;
    this.post({ kind: "breakpoint", uri: shown.uri, line, last });
  }

  /** What the tooltip says; statistics that nobody has asked for yet are asked for. */
  private tooltipOf(shown: PictureNode): HTMLElement[] {
    const marks = this.state.marks(shown);
    for (const { name } of shown.node.values) {
      if (marks.live?.[name] !== undefined) {
        this.post({ kind: "inspect", name });
      }
    }
    return aboutNode(shown, marks);
  }

  private onKey(event: KeyboardEvent): void {
    const shown = this.scene.shown(this.state.chosen);
    const arrows: Record<string, Direction> = {
      ArrowUp: "up",
      ArrowDown: "down",
      ArrowLeft: "left",
      ArrowRight: "right",
    };
    const keys: Record<string, () => void> = {
      Enter: () => shown && (event.ctrlKey ? this.enter(shown) : this.goToLine(shown, true)),
      e: () => shown && this.expand(shown),
      o: () => shown && this.enter(shown),
      b: () => shown && this.toggle(shown),
      t: () =>
        shown?.node.values[0] && this.post({ kind: "tensor", name: shown.node.values[0].name }),
      f: () => this.scene.fit(),
      "+": () => this.scene.viewport.zoom(1.25),
      "=": () => this.scene.viewport.zoom(1.25),
      "-": () => this.scene.viewport.zoom(1 / 1.25),
      Home: () => this.choose(this.state.cursor ?? this.scene.picture.nodes[0]?.key),
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
    const nodes = this.scene.drawing.boxes.filter(({ shown }) => !shown.frame);
    const placed = nodes.map(({ shown, box }) => ({ key: shown.key, x: box.x, y: box.y }));
    const from =
      placed.find((n) => n.key === (this.state.chosen ?? this.state.cursor)) ?? undefined;
    if (from === undefined || this.state.chosen === undefined) {
      this.choose(from?.key ?? placed[0]?.key);
      return;
    }
    const to = nodeInDirection(
      from,
      direction,
      placed,
      this.scene.picture.links,
      Boolean(this.saved.across),
    );
    if (to !== undefined) {
      this.choose(to);
    }
  }

  /** What a search looks at: of a model its calls, too; of a large graph also what is not drawn. */
  private whole(): readonly PictureNode[] {
    const { data } = this.state;
    return (data && this.library.nodes(data, this.saved.weights)) ?? this.scene.picture.all;
  }

  private choose(key: string | undefined): void {
    this.state.chosen = key;
    const { data } = this.state;
    if (key !== undefined && data && this.library.open(key, data, this.expanded)) {
      void this.draw("stay").then(() => this.point(key));
      return;
    }
    if (key !== undefined && this.scene.shown(key) === undefined) {
      this.around = key; // it is not drawn: then what is around it is
      void this.draw("focus").then(() => this.point(key));
    } else {
      this.point(key);
    }
  }

  /** Shows what is chosen. */
  private point(key: string | undefined): void {
    this.scene.reveal(key);
    this.refresh();
    if (key === undefined) {
      this.scene.surface.removeAttribute("aria-activedescendant");
    } else {
      this.scene.surface.setAttribute("aria-activedescendant", idOf(key));
      this.announce(this.scene.drawing.element(key)?.getAttribute("aria-label") ?? "");
    }
  }

  // --- the rest of the page ---

  /** Says that a part is shown, where that is so. */
  private noteLimit(): void {
    if (this.limited) {
      const { nodes, whole } = this.scene.picture;
      const some = grouped(nodes.length);
      const place = this.around === undefined ? "the cursor" : "what was found";
      this.note.show(`${some} of ${grouped(whole)} nodes, around ${place}`, "Draw all", () =>
        this.drawAll(true),
      );
    } else if (this.state.data?.nodes.length === 0) {
      this.note.show("The graph is empty");
    }
  }

  private announce(text: string): void {
    this.announcement.textContent = text;
  }

  private async exportImage(format: "svg" | "png"): Promise<void> {
    // What is chosen, and where the cursor is, is no part of the picture.
    const { chosen, cursor } = this.state;
    this.state.chosen = this.state.cursor = undefined;
    this.refresh();
    try {
      const data =
        format === "svg"
          ? asSvg(this.scene.drawing, this.scene.surface)
          : await asPng(this.scene.drawing, this.scene.surface);
      this.post({ kind: "export", format, data });
    } catch (error) {
      this.note.show(`The picture could not be saved: ${messageOf(error)}`);
    }
    [this.state.chosen, this.state.cursor] = [chosen, cursor];
    this.refresh();
    this.scene.moved();
  }
}
