/** The row above the picture: where one is, search, and what is shown. */

export interface Toolbar {
  root: HTMLElement;
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

const BUTTONS: [ButtonName, string, string, boolean][] = [
  ["weights", "Weights", "Draw params and states as nodes of their own", true],
  ["across", "Across", "From left to right instead of from top to bottom", true],
  ["streams", "Streams", "Colour nodes by the stream that the plan gives them", true],
  ["follow", "Follow", "Show the graph that the cursor or the debugger is in", true],
  ["out", "−", "Zoom out (-)", false],
  ["in", "+", "Zoom in (+)", false],
  ["fit", "Fit", "Show all of it (F)", false],
  ["svg", "SVG", "Save the picture as SVG", false],
  ["png", "PNG", "Save the picture as PNG", false],
];

export function element<K extends keyof HTMLElementTagNameMap>(
  name: K,
  properties: Partial<HTMLElementTagNameMap[K]> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function toolbar(): Toolbar {
  const buttons: Partial<Record<ButtonName, HTMLButtonElement>> = {};
  const make = (name: ButtonName, text: string, title: string, toggles: boolean) => {
    const made = element("button", { type: "button", textContent: text, title, className: name });
    made.setAttribute("aria-label", title);
    if (toggles) {
      made.setAttribute("aria-pressed", "false");
    }
    buttons[name] = made;
    return made;
  };
  const path = element("nav", { className: "path" });
  path.setAttribute("aria-label", "Graphs that lead here");
  const graphs = element("select", { title: "Another graph of the file", className: "graphs" });
  graphs.setAttribute("aria-label", "Another graph of the file");
  const search = element("input", {
    type: "search",
    placeholder: "Search (Ctrl+F)",
    className: "search",
  });
  search.setAttribute("aria-label", "Search names, ops, attributes and types");
  const count = element("span", { className: "count" });
  count.setAttribute("aria-live", "polite");
  const root = element(
    "header",
    { className: "toolbar" },
    path,
    graphs,
    element("span", { className: "gap" }),
    search,
    count,
    make("previous", "↑", "Previous match (Shift+Enter)", false),
    make("next", "↓", "Next match (Enter)", false),
    element("span", { className: "gap" }),
    ...BUTTONS.map((button) => make(...button)),
  );
  return { root, path, graphs, search, count, buttons: buttons as Toolbar["buttons"] };
}

export function press(button: HTMLButtonElement, on: boolean): void {
  button.setAttribute("aria-pressed", String(on));
}

/** The calls that lead here, each a way back, and which other graphs there are. */
export function showWhere(
  bar: Toolbar,
  path: string[],
  data: { graph: string; graphs: string[] },
  back: (to: number) => void,
): void {
  const last = path.length - 1;
  bar.path.replaceChildren(
    ...path.flatMap((name, k) => {
      if (k === last) {
        const here = element("span", { className: "here", textContent: name });
        here.setAttribute("aria-current", "true");
        return [here];
      }
      const title = `Back to ${name}`;
      const there = element("button", { type: "button", textContent: name, title });
      there.addEventListener("click", () => back(k));
      return [there, element("span", { className: "then", textContent: "›" })];
    }),
  );
  bar.graphs.hidden = data.graphs.length < 2;
  bar.graphs.replaceChildren(
    ...data.graphs.map((name) => element("option", { value: name, textContent: name })),
  );
  bar.graphs.value = data.graph;
}
