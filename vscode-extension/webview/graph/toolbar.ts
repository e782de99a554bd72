/** The row above the picture: where one is, search, and what is shown. */

import { callName } from "../../shared/frames";
import type { PathEntry } from "../../shared/graph/messages";
import { h } from "../dom";

export interface Toolbar {
  root: HTMLElement;
  /** What stands in the corner of the picture, for there is little room above. */
  corner: HTMLElement;
  path: HTMLElement;
  graphs: HTMLSelectElement;
  search: HTMLInputElement;
  count: HTMLElement;
  buttons: Record<ButtonName, HTMLButtonElement>;
}

export type ButtonName =
  | "previous"
  | "next"
  | "weights"
  | "across"
  | "streams"
  | "follow"
  | "out"
  | "in"
  | "fit"
  | "svg"
  | "png";

type Button = [ButtonName, string, string, boolean];
const BUTTONS: Button[] = [
  ["weights", "Weights", "Draw params and states as nodes, not in the ops that read them", true],
  ["across", "Across", "Lay out left to right instead of top to bottom", true],
  [
    "streams",
    "Streams",
    "Colour nodes by their stream: the queue of work in which the plan has them run",
    true,
  ],
  [
    "follow",
    "Follow",
    "Go along with the cursor and the debugger: show the graph and the line where they are",
    true,
  ],
  ["svg", "SVG", "Save the picture as SVG", false],
  ["png", "PNG", "Save the picture as PNG", false],
];
const ZOOM: Button[] = [
  ["out", "−", "Zoom out (-)", false],
  ["in", "+", "Zoom in (+)", false],
  ["fit", "Fit", "Fit to window (F)", false],
];

export function toolbar(): Toolbar {
  const buttons: Partial<Record<ButtonName, HTMLButtonElement>> = {};
  const make = (name: ButtonName, text: string, title: string, toggles: boolean) => {
    const button = h("button", { type: "button", text, title, class: name });
    button.setAttribute("aria-label", title);
    if (toggles) {
      button.setAttribute("aria-pressed", "false");
    }
    buttons[name] = button;
    return button;
  };
  const path = h("nav", { class: "path" });
  path.setAttribute("aria-label", "Path to this graph");
  const graphs = h("select", { title: "Graphs in this file", class: "graphs" });
  graphs.setAttribute("aria-label", "Graphs in this file");
  const search = h("input", {
    type: "search",
    placeholder: "Search (Ctrl+F)",
    class: "search",
  });
  search.setAttribute("aria-label", "Search names, ops, attributes and types");
  const count = h("span", { class: "count" });
  count.setAttribute("aria-live", "polite");
  const root = h(
    "header",
    { class: "toolbar" },
    path,
    graphs,
    h("span", { class: "gap" }),
    search,
    count,
    make("previous", "↑", "Previous match (Shift+Enter)", false),
    make("next", "↓", "Next match (Enter)", false),
    h("span", { class: "gap" }),
    ...BUTTONS.map((button) => make(...button)),
  );
  const corner = h("div", { class: "corner" }, ...ZOOM.map((button) => make(...button)));
  return { root, corner, path, graphs, search, count, buttons: buttons as Toolbar["buttons"] };
}

export function press(button: HTMLButtonElement, on: boolean): void {
  button.setAttribute("aria-pressed", String(on));
}

/** The calls that lead here, each a way back, and which other graphs there are. */
export function showWhere(
  bar: Toolbar,
  path: PathEntry[],
  data: { graph: string; graphs: string[] },
  back: (to: number) => void,
): void {
  const last = path.length - 1;
  bar.path.replaceChildren(
    ...path.flatMap(({ graph, call }, k) => {
      const name = callName(graph, call);
      if (k === last) {
        const here = h("span", { class: "here", text: name });
        here.setAttribute("aria-current", "true");
        return [here];
      }
      const title = `Back to ${name}`;
      const there = h("button", { type: "button", text: name, title });
      there.addEventListener("click", () => back(k));
      return [there, h("span", { class: "then", text: "›" })];
    }),
  );
  // The list says what the only graph is.
  bar.path.hidden = path.length < 2 && data.graphs.length > 1;
  bar.graphs.hidden = data.graphs.length < 2;
  bar.graphs.replaceChildren(
    ...data.graphs.map((name) => h("option", { value: name, text: name })),
  );
  bar.graphs.value = data.graph;
}
