/** The row above the question: which workspace, SQL or a plot, run and stop, history, examples. */

import type { Mode, WorkspaceEntry } from "../../shared/query/messages";
import { h } from "../dom";
import { type Item, menuButton } from "./menu";

interface ToolbarEvents {
  run(): void;
  stop(): void;
  mode(mode: Mode): void;
  /** Another workspace; undefined: a file that is not in the list. */
  choose(path: string | undefined): void;
  history(): Item[];
  examples(): Item[];
}

const OTHER = "\0other";

export class Toolbar {
  readonly element: HTMLElement;
  private readonly select: HTMLSelectElement;
  private readonly go: HTMLButtonElement;
  private readonly stop: HTMLButtonElement;
  private readonly modes: Record<Mode, HTMLButtonElement>;
  private path = "";

  constructor(events: ToolbarEvents) {
    this.select = h("select", { "aria-label": "Workspace", title: "Workspace" });
    this.select.addEventListener("change", () => {
      const chosen = this.select.value;
      this.select.value = this.path;
      events.choose(chosen === OTHER ? undefined : chosen);
    });
    this.go = h("button", {
      class: "run",
      title: "Run (Ctrl+Enter)",
      onclick: () => events.run(),
    });
    this.go.append(h("span", { "aria-hidden": "true", text: "▶ " }), "Run");
    this.stop = h("button", {
      class: "stop",
      title: "Stop (Escape)",
      disabled: true,
      text: "Stop",
      onclick: () => events.stop(),
    });
    const tab = (mode: Mode, label: string, title: string) =>
      h("button", {
        role: "radio",
        class: "mode",
        text: label,
        title,
        onclick: () => events.mode(mode),
      });
    this.modes = {
      sql: tab("sql", "SQL", "Query in SQL"),
      plot: tab("plot", "Plot", "Plot a value over steps: stats.absmax where op=relu"),
    };
    const group = h("div", {
      class: "modes",
      role: "radiogroup",
      "aria-label": "Kind of query",
    });
    group.append(this.modes.sql, this.modes.plot);
    group.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        event.preventDefault();
        const next = this.modes.sql.getAttribute("aria-checked") === "true" ? "plot" : "sql";
        events.mode(next);
        this.modes[next].focus();
      }
    });
    this.element = h(
      "div",
      { class: "toolbar", role: "toolbar", "aria-label": "Query" },
      this.select,
      group,
      this.go,
      this.stop,
      h("span", { class: "spring" }),
      menuButton(
        "History",
        "Previous queries (Alt+Up in the editor)",
        events.history,
        "No queries yet",
      ),
      menuButton("Examples", "Example queries", events.examples, "No workspace selected"),
    );
  }

  setWorkspaces(workspaces: WorkspaceEntry[], path: string): void {
    this.path = path;
    const options = workspaces.map(({ path, label }) =>
      h("option", { value: path, text: label, title: path }),
    );
    if (path && !workspaces.some((k) => k.path === path)) {
      options.unshift(
        h("option", { value: path, text: path.split(/[\\/]/).at(-1) ?? path, title: path }),
      );
    }
    if (!path) {
      options.unshift(h("option", { value: "", text: "No workspace" }));
    }
    options.push(h("option", { value: OTHER, text: "Open a file …" }));
    this.select.replaceChildren(...options);
    this.select.value = path;
    this.select.title = path || "Workspace";
  }

  setMode(mode: Mode): void {
    for (const [name, button] of Object.entries(this.modes)) {
      button.setAttribute("aria-checked", String(name === mode));
      button.tabIndex = name === mode ? 0 : -1;
    }
  }

  setBusy(on: boolean): void {
    this.stop.disabled = !on;
    this.element.classList.toggle("busy", on);
  }
}
