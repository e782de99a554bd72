/** The picture as SVG: nodes, edges, and the marks on them. Only what is in view is in the page. */

import { type Box, curve, type Layout } from "./layout";
import { FIGURES, textOf } from "./measure";
import type { Link, Picture, PictureNode, Progress } from "./model";

const NS = "http://www.w3.org/2000/svg";
const ALL = 400; // nodes up to which everything stays in the page

type Attributes = Record<string, string | number>;

export function svg<K extends keyof SVGElementTagNameMap>(
  name: K,
  attributes: Attributes = {},
  ...children: (Node | string)[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, String(value));
  }
  element.append(...children);
  return element;
}

/** What is known about a node beside the program. */
export interface Marks {
  progress: Progress;
  cursor: boolean;
  chosen: boolean;
  found: boolean;
  faded: boolean;
  tainted: string | null;
  stream: number | null;
  breakpoint: "on" | "off" | "special" | null;
  live: Record<string, string> | null;
}

export class Drawing {
  readonly root: SVGGElement;
  private readonly frames = svg("g", { class: "frames" });
  private readonly wires = svg("g", { class: "wires" });
  private readonly nodes = svg("g", { class: "nodes" });
  private readonly shown = new Map<string, SVGGElement>();
  private readonly drawn = new Map<string, SVGGElement>();
  private picture: Picture = { nodes: [], links: [], whole: 0, all: [] };
  private byKey = new Map<string, PictureNode>();
  private layout: Layout = { boxes: {}, routes: {}, width: 0, height: 0 };
  private marks: (shown: PictureNode) => Marks = () => BARE;

  constructor() {
    this.root = svg("g", { class: "picture" }, this.frames, this.wires, this.nodes);
  }

  /** Draws another picture. */
  set(picture: Picture, layout: Layout, marks: (shown: PictureNode) => Marks): void {
    this.picture = picture;
    this.byKey = new Map(picture.nodes.map((n) => [n.key, n]));
    this.layout = layout;
    this.marks = marks;
    for (const group of [this.frames, this.wires, this.nodes]) {
      group.replaceChildren();
    }
    this.shown.clear();
    this.drawn.clear();
  }

  box(key: string): Box | undefined {
    return this.layout.boxes[key];
  }

  element(key: string): SVGGElement | undefined {
    return this.shown.get(key);
  }

  get size(): { width: number; height: number } {
    return this.layout;
  }

  get boxes(): readonly { shown: PictureNode; box: Box }[] {
    return this.picture.nodes.flatMap((shown) => {
      const box = this.layout.boxes[shown.key];
      return box === undefined ? [] : [{ shown, box }];
    });
  }

  get labels(): readonly Box[] {
    return Object.values(this.layout.routes).flatMap(({ label }) => (label ? [label] : []));
  }

  /** Puts in the page what a part of the picture shows, and takes out the rest; all without one. */
  show(part: { left: number; top: number; right: number; bottom: number } | null): void {
    const all = part === null || this.picture.nodes.length <= ALL;
    const inside = (left: number, top: number, right: number, bottom: number) =>
      all || (right > part.left && left < part.right && bottom > part.top && top < part.bottom);
    for (const { shown, box } of this.boxes) {
      const [w, h] = [box.width / 2, box.height / 2];
      const there = this.shown.get(shown.key);
      if (inside(box.x - w, box.y - h, box.x + w, box.y + h)) {
        if (there === undefined) {
          this.put(shown, box);
        }
      } else if (there !== undefined) {
        there.remove();
        this.shown.delete(shown.key);
      }
    }
    for (const link of this.picture.links) {
      const route = this.layout.routes[link.key];
      if (route === undefined) {
        continue;
      }
      const xs = route.points.map((p) => p.x);
      const ys = route.points.map((p) => p.y);
      const there = this.drawn.get(link.key);
      if (inside(Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys))) {
        if (there === undefined) {
          this.wire(link, route);
        }
      } else if (there !== undefined) {
        there.remove();
        this.drawn.delete(link.key);
      }
    }
  }

  /** Brings the marks of all nodes in the page up to date. */
  refresh(): void {
    for (const [key, element] of this.shown) {
      const shown = this.byKey.get(key);
      if (shown !== undefined) {
        mark(element, shown, this.marks(shown));
      }
    }
    for (const link of this.picture.links) {
      this.drawn.get(link.key)?.setAttribute("class", this.wireClass(link));
    }
  }

  private wireClass(link: Link): string {
    const from = this.byKey.get(link.from);
    const to = this.byKey.get(link.to);
    const names = ["wire"];
    if (from && to) {
      const [a, b] = [this.marks(from), this.marks(to)];
      if (a.tainted !== null && b.tainted !== null) {
        names.push("tainted");
      }
      if (a.chosen || b.chosen) {
        names.push("chosen");
      }
      if (a.faded || b.faded) {
        names.push("faded");
      }
    }
    return names.join(" ");
  }

  private put(shown: PictureNode, box: Box): void {
    const element = shown.frame ? frame(shown, box) : leaf(shown, box);
    mark(element, shown, this.marks(shown));
    this.shown.set(shown.key, element);
    (shown.frame ? this.frames : this.nodes).append(element);
  }

  private wire(link: Link, route: Layout["routes"][string]): void {
    const group = svg("g", { class: this.wireClass(link) });
    group.append(
      svg("path", { class: "line", d: curve(route.points), "marker-end": "url(#arrow)" }),
      svg("path", { class: "grip", d: curve(route.points), "data-link": link.key }),
    );
    if (route.label !== null) {
      const { x, y } = route.label;
      group.append(svg("text", { class: "label", x, y: y + 4 }, link.value));
    }
    this.drawn.set(link.key, group);
    this.wires.append(group);
  }
}

/** What a link carries, in a tooltip. */
export function linkText(link: Link): string {
  return link.type === null ? link.value : `${link.value}: ${link.type}`;
}

const BARE: Marks = {
  progress: "none",
  cursor: false,
  chosen: false,
  found: false,
  faded: false,
  tainted: null,
  stream: null,
  breakpoint: null,
  live: null,
};

function leaf(shown: PictureNode, { x, y, width, height }: Box): SVGGElement {
  const group = svg("g", {
    id: idOf(shown.key),
    "data-key": shown.key,
    transform: `translate(${x - width / 2} ${y - height / 2})`,
    role: "button",
  });
  group.append(
    svg("rect", { class: "halo", x: -4, y: -4, width: width + 8, height: height + 8, rx: 9 }),
    svg("rect", { class: "body", width, height, rx: 6 }),
    svg("path", { class: "kind", d: `M6,0H5Q0,0 0,5V${height - 5}Q0,${height} 5,${height}H6Z` }),
  );
  const { title, weights, detail, types } = textOf(shown, null);
  let line = 21;
  const text = (name: string, content: string) => {
    if (content !== "") {
      group.append(svg("text", { class: name, x: 14, y: line }, content));
      line += 16;
    }
  };
  text("title", title);
  weights.forEach((weight, k) => {
    group.append(weightRow(weight, { y: line, width, index: k }));
    line += 16;
  });
  text("detail", detail);
  text("types", types);
  const calls = shown.node.calls;
  if (calls.length === 1) {
    group.append(button("expand", width - 34, 6, "M4,8H12M8,4V12", `Expand ${calls[0]} here`));
  }
  if (calls.length > 0) {
    group.append(button("enter", width - 17, 6, "M5,4L11,8L5,12", `Open ${calls.join(", ")}`));
  }
  group.append(breakpoint(height / 2));
  if (shown.hidden > 0) {
    const more = svg("text", { class: "more", x: width - 6, y: height + 12 }, `+${shown.hidden} …`);
    group.append(more);
  }
  return group;
}

/** The name at the left, the type at the right: those of a node stand in columns. */
function weightRow(
  { name, type, kind }: ReturnType<typeof textOf>["weights"][number],
  { y, width, index }: { y: number; width: number; index: number },
): SVGGElement {
  const row = svg("g", { class: `weight ${kind}` });
  if (kind !== "more") {
    row.setAttribute("data-act", "weight");
    row.setAttribute("data-weight", String(index));
    row.append(svg("title", {}, `Go to ${kind} ${name}`));
  }
  row.append(
    svg("text", { class: "name", x: 14, y }, name),
    svg("text", { class: "type", x: width - 12, y }, type),
  );
  return row;
}

function frame(shown: PictureNode, { x, y, width, height }: Box): SVGGElement {
  const group = svg("g", {
    id: idOf(shown.key),
    "data-key": shown.key,
    transform: `translate(${x - width / 2} ${y - height / 2})`,
    role: "group",
  });
  const title = textOf(shown, null).title;
  group.append(
    svg("rect", { class: "body", width, height, rx: 8 }),
    svg("text", { class: "title", x: 26, y: 17 }, title),
    button("collapse", 6, 4, "M4,8H12", `Collapse ${shown.node.op}`),
  );
  return group;
}

function button(name: string, x: number, y: number, path: string, label: string): SVGGElement {
  return svg(
    "g",
    { class: `act ${name}`, "data-act": name, transform: `translate(${x} ${y})` },
    svg("title", {}, label),
    svg("rect", { width: 16, height: 16, rx: 3 }),
    svg("path", { d: path }),
  );
}

function breakpoint(y: number): SVGGElement {
  return svg(
    "g",
    { class: "breakpoint", "data-act": "breakpoint", transform: `translate(0 ${y})` },
    svg("title", {}, "Toggle breakpoint"),
    svg("circle", { class: "target", r: 10 }),
    svg("circle", { class: "dot", r: 5.5 }),
  );
}

function mark(element: SVGGElement, shown: PictureNode, marks: Marks): void {
  const { progress, breakpoint, stream, live } = marks;
  const names = [shown.frame ? "frame" : "node", shown.node.kind, `is-${progress}`];
  for (const name of ["cursor", "chosen", "found", "faded"] as const) {
    if (marks[name]) {
      names.push(name);
    }
  }
  if (marks.tainted !== null) {
    names.push("tainted");
  }
  if (shown.node.problem !== undefined) {
    names.push("problem");
  }
  if (breakpoint !== null) {
    names.push(`breaks breaks-${breakpoint}`);
  }
  if (stream !== null) {
    names.push(`stream stream-${stream % 8}`);
  }
  element.setAttribute("class", names.join(" "));
  element.setAttribute("aria-label", label(shown, marks));
  const types = element.querySelector(":scope > .types");
  if (types !== null) {
    const text = textOf(shown, live);
    // The box was made for the types: what is longer is in the tooltip.
    const width = textOf(shown, null);
    const most = Math.max(
      FIGURES.length,
      width.types.length,
      width.title.length,
      width.detail.length,
    );
    types.textContent = text.types.length > most ? `${text.types.slice(0, most - 1)}…` : text.types;
    const figures = text.types !== width.types;
    types.classList.toggle("live", figures);
    types.classList.toggle("bad", figures && /\b(NaN|inf)\b/i.test(text.types));
  }
}

function label(shown: PictureNode, marks: Marks): string {
  const { title, weights, detail, types } = textOf(shown, marks.live);
  const states = [
    shown.node.kind,
    title,
    ...weights.map(({ name, type }) => `${name} ${type}`.trim()),
    detail,
    types,
    `line ${shown.node.lines[0] + 1}`,
    { done: "done", now: "the run is stopped here", later: "not yet", none: "" }[marks.progress],
    marks.breakpoint === null ? "" : "breakpoint",
    marks.tainted ?? "",
    shown.node.problem ?? "",
  ];
  return states.filter(Boolean).join(", ");
}

export function idOf(key: string): string {
  return `node-${key.replaceAll(/[^\w]/g, "_")}`;
}
