/** What is known about a node or an edge, beside the pointer or the node that was chosen. */

import { h } from "../dom";
import type { Marks } from "./drawing";
import { linkText } from "./drawing";
import { statement, summarize } from "./measure";
import type { Link, PictureNode } from "./model";

const DELAY_MS = 350;

export class Tooltip {
  readonly root = h("div", { class: "tooltip", hidden: true });
  private timer = 0;
  private key: string | undefined;

  constructor() {
    this.root.setAttribute("role", "tooltip");
  }

  /** Shows it after a moment; `fill` is asked when it opens. */
  later(key: string, at: { x: number; y: number }, fill: () => HTMLElement[] | undefined): void {
    if (this.key === key) {
      return;
    }
    this.hide();
    this.key = key;
    this.timer = window.setTimeout(() => {
      const content = fill();
      if (content !== undefined) {
        this.root.replaceChildren(...content);
        this.root.hidden = false;
        this.place(at);
      }
    }, DELAY_MS);
  }

  /** Brings the content up to date while it is open. */
  update(key: string, fill: () => HTMLElement[] | undefined): void {
    if (this.key === key && !this.root.hidden) {
      this.root.replaceChildren(...(fill() ?? []));
    }
  }

  hide(): void {
    window.clearTimeout(this.timer);
    this.key = undefined;
    this.root.hidden = true;
  }

  private place({ x, y }: { x: number; y: number }): void {
    const { offsetWidth, offsetHeight } = this.root;
    const left = Math.min(x + 14, window.innerWidth - offsetWidth - 6);
    const top = y + 18 + offsetHeight > window.innerHeight ? y - offsetHeight - 10 : y + 18;
    this.root.style.left = `${Math.max(4, left)}px`;
    this.root.style.top = `${Math.max(4, top)}px`;
  }
}

export function aboutNode(shown: PictureNode, marks: Marks): HTMLElement[] {
  const lines = [h("div", { class: "statement", text: statement(shown) })];
  const add = (name: string, text: string) => lines.push(h("div", { class: name, text }));
  for (const value of shown.node.values) {
    const live = marks.live?.[value.name];
    add("value", `${value.name}: ${live ?? value.type ?? "type unknown"}`);
  }
  if (shown.node.values.some(({ name }) => summarize(marks.live?.[name] ?? "").includes("±"))) {
    add("hint", "In the node: mean ± standard deviation");
  }
  const places = [`line ${shown.node.lines[0] + 1} of ${shown.graph}`];
  if (marks.stream !== null) {
    places.push(`stream ${marks.stream}`);
  }
  const progress = { done: "has run", now: "is next", later: "has not run", none: "" };
  if (progress[marks.progress] && shown.node.kind !== "input") {
    places.push(progress[marks.progress]);
  }
  add("place", places.join(" · "));
  if (shown.node.problem !== undefined) {
    add("problem", shown.node.problem);
  }
  if (marks.tainted !== null) {
    add("nan", marks.tainted);
  }
  if (shown.node.calls.length > 0) {
    add("hint", "Double-click to open the graph, + to expand it here");
  }
  return lines;
}

export function aboutLink(link: Link): HTMLElement[] {
  return [h("div", { class: "statement", text: linkText(link) })];
}
