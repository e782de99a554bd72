/** What is seen: the picture in its window, arranged anew for each new one. */

import { Drawing, type Marks, svg } from "./drawing";
import type { LayoutRequest } from "./layout";
import { LayoutRunner } from "./layoutRunner";
import { type Measure, sizeOf } from "./measure";
import { Minimap } from "./minimap";
import type { Picture, PictureNode } from "./model";
import { Viewport } from "./viewport";

const LABELLED = 90; // nodes up to which edges have labels
const READABLE = 0.6; // below this scale texts cannot be read

/** What a new picture shows at first: all of it, what the last one showed, or the cursor's node. */
export type Placing = "fit" | "stay" | "focus";

/** Nodes that matter when a picture is placed. */
interface Focus {
  cursor: string | undefined;
  chosen: string | undefined;
  /** What was just opened or closed: it stays under the pointer. */
  touched?: string;
}

interface Anchor {
  key: string;
  x: number;
  y: number;
}

export class Scene {
  readonly surface = svg("svg", { class: "surface", tabindex: 0, role: "application" });
  readonly drawing = new Drawing();
  readonly viewport = new Viewport(this.surface, () => this.moved());
  readonly minimap = new Minimap(this.drawing, this.viewport);
  picture: Picture = { nodes: [], links: [], whole: 0, all: [] };
  private across = false;
  private size = { width: 0, height: 0 };
  private readonly layouts = new LayoutRunner();
  private readonly measure: Measure = textMeasure(this.surface);

  constructor(private readonly marks: (shown: PictureNode) => Marks) {
    this.surface.setAttribute("aria-label", "Data flow. Arrow keys go along the edges.");
    const arrow = svg("marker", {
      id: "arrow",
      viewBox: "0 0 8 8",
      refX: 7,
      refY: 4,
      markerUnits: "userSpaceOnUse",
      markerWidth: 8,
      markerHeight: 8,
      orient: "auto-start-reverse",
    });
    arrow.append(svg("path", { d: "M0,0.6L8,4L0,7.4Z", class: "head" }));
    this.surface.append(svg("defs", {}, arrow), this.drawing.root);
    new ResizeObserver(() => this.resized()).observe(this.surface);
  }

  /** Draws a picture. Rejects with `Superseded` where another one was asked for since. */
  async draw(next: Picture, across: boolean, then: Placing, focus: Focus): Promise<void> {
    const layout = await this.layouts.run(this.request(next, across));
    this.resized(); // the observer may not have told yet: it would move what is now placed
    const anchor = then === "stay" ? this.anchor(focus) : undefined;
    this.picture = next;
    this.across = across;
    this.drawing.set(next, layout, this.marks);
    this.place(then, across, focus, anchor);
    this.moved();
    this.minimap.settle();
  }

  /** Ends a layout that is under way. */
  cancel(): void {
    this.layouts.cancel();
  }

  /** A node of the picture. */
  shown(key: string | undefined): PictureNode | undefined {
    return key === undefined ? undefined : this.picture.nodes.find((n) => n.key === key);
  }

  fit(): void {
    this.resized();
    this.viewport.fit(this.drawing.size);
  }

  refresh(): void {
    this.drawing.refresh();
    this.minimap.paint();
  }

  /** Brings a node into the window. */
  reveal(key: string | undefined): void {
    const box = key === undefined ? undefined : this.drawing.box(key);
    if (box !== undefined) {
      this.viewport.reveal(box);
    }
  }

  /** Follows the window. */
  moved(): void {
    const { x, y, scale } = this.viewport.view;
    this.drawing.root.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
    this.surface.classList.toggle("far", scale < 0.35);
    this.drawing.show(this.viewport.part());
    this.minimap.paint();
  }

  /** Across the flow, what was in the middle stays there; along it, what was at the beginning. */
  private resized(): void {
    const [before, now] = [this.size, this.viewport.size];
    this.size = now;
    if (before.width > 0 && now.width > 0) {
      const { across } = this;
      const shift = across ? now.height - before.height : now.width - before.width;
      this.viewport.pan(across ? 0 : shift / 2, across ? shift / 2 : 0);
    }
    this.moved();
    this.minimap.settle();
  }

  private request(next: Picture, across: boolean): LayoutRequest {
    const labelled = next.nodes.length <= LABELLED;
    // A node says what its result is. Of several results, an edge says which one it is.
    const several = new Set(next.nodes.filter((n) => n.node.values.length > 1).map((n) => n.key));
    return {
      across,
      nodes: next.nodes.map((shown) => ({
        key: shown.key,
        parent: shown.parent,
        frame: shown.frame,
        ...(shown.frame ? { width: 0, height: 0 } : sizeOf(shown, this.measure)),
      })),
      wires: next.links.map((link) => {
        const label = labelled && several.has(link.from);
        const width = label ? this.measure(link.value, false) * 0.9 + 8 : 0;
        return { key: link.key, from: link.from, to: link.to, width, height: label ? 14 : 0 };
      }),
    };
  }

  /** What is to stay where it is when the picture changes: a node and its place in the window. */
  private anchor({ touched, cursor, chosen }: Focus): Anchor | undefined {
    const { x, y, scale } = this.viewport.view;
    for (const key of [touched, cursor, chosen, ...this.picture.nodes.map((n) => n.key)]) {
      const box = key === undefined ? undefined : this.drawing.box(key);
      if (key !== undefined && box !== undefined) {
        return { key, x: box.x * scale + x, y: (box.y - box.height / 2) * scale + y };
      }
    }
    return undefined;
  }

  private place(then: Placing, across: boolean, { cursor }: Focus, anchor?: Anchor): void {
    const focus = cursor === undefined ? undefined : this.drawing.box(cursor);
    const before = anchor === undefined ? undefined : this.drawing.box(anchor.key);
    const { view } = this.viewport;
    if (then === "stay" && anchor !== undefined && before !== undefined) {
      const top = before.y - before.height / 2;
      this.viewport.set({
        ...view,
        x: anchor.x - before.x * view.scale,
        y: anchor.y - top * view.scale,
      });
    } else if (then === "focus" && focus !== undefined) {
      this.viewport.center(focus.x, focus.y);
    } else {
      this.viewport.fit(this.drawing.size);
      // Too small to be read: at the beginning, or where the cursor is.
      if (this.viewport.view.scale < READABLE) {
        const { width, height } = this.drawing.size;
        const at = focus ?? (across ? { x: 0, y: height / 2 } : { x: width / 2, y: 0 });
        this.viewport.center(at.x, at.y, 0.8);
        if (focus === undefined) {
          const size = this.viewport.size;
          this.viewport.pan(across ? -size.width / 2 + 20 : 0, across ? 0 : -size.height / 2 + 20);
        }
      }
    }
  }
}

function textMeasure(surface: SVGSVGElement): Measure {
  const context = document.createElement("canvas").getContext("2d");
  const widths = new Map<string, number>();
  return (text, bold) => {
    const key = `${bold} ${text}`;
    let width = widths.get(key);
    if (width === undefined) {
      const { fontFamily } = getComputedStyle(surface);
      if (context !== null) {
        context.font = bold ? `600 12px ${fontFamily}` : `11px ${fontFamily}`;
      }
      width = context?.measureText(text).width ?? text.length * 7;
      widths.set(key, width);
    }
    return width;
  };
}
