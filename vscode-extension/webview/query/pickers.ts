/** Lists to choose a plot from, beside its text: each changes the other. */

import type { Schema } from "../../shared/query/messages";
import {
  formatPlot,
  keysOf,
  type PlotText,
  parsePlot,
  withFigure,
  withValue,
} from "../../shared/query/plotText";
import { h } from "../dom";
import { STATS } from "./completion";

const NOTHING: Pick<Schema, "names" | "runs" | "titles" | "recorded"> = {
  names: { op: [], value: [], graph: [], metric: [] },
  runs: [],
  titles: {},
  recorded: [],
};
const LABELS = { figure: "Statistic", op: "Op", value: "Value", run: "Run" };
type Picked = keyof typeof LABELS;

export class PlotPickers {
  readonly element = h("div", {
    class: "pickers",
    role: "group",
    "aria-label": "Plot",
    hidden: true,
  });
  private readonly lists = {} as Record<Picked, HTMLSelectElement>;
  private shown: PlotText = parsePlot("");
  private schema: Schema | undefined;

  /** `choose` is given the text of what was picked. */
  constructor(choose: (text: string) => void) {
    for (const [name, label] of Object.entries(LABELS) as [Picked, string][]) {
      const list = h("select", { "aria-label": label });
      list.addEventListener("change", () => {
        const { value } = list;
        const { shown } = this;
        choose(
          formatPlot(name === "figure" ? withFigure(shown, value) : withValue(shown, name, value)),
        );
      });
      this.lists[name] = list;
      this.element.append(h("label", { class: "picker" }, h("span", { text: label }), list));
    }
  }

  setSchema(schema: Schema | undefined): void {
    this.schema = schema;
    this.fill();
  }

  /** Shows what a text asks for. */
  show(text: string): void {
    this.shown = parsePlot(text);
    this.fill();
  }

  private fill(): void {
    const { names, runs, titles, recorded } = this.schema ?? NOTHING;
    const { figure, where } = this.shown;
    const figures: Record<string, [string, string[][]]> = {
      metrics: ["Metrics", names.metric.map((name) => [`metrics.${name}`, name])],
      stats: [
        "Of each tensor",
        Object.entries(STATS).map(([name, what]) => [`stats.${name}`, `${name}: ${what}`]),
      ],
      executions: ["Of each op", [["executions.seconds", "seconds: time of an execution"]]],
    };
    const known = Object.keys(figures).filter((table) => recorded.includes(table));
    fillList(
      this.lists.figure,
      figure,
      known.map((table) => figures[table] as [string, string[][]]),
    );
    const all = { op: "All ops", value: "All values", run: "Last run" };
    const options: Record<keyof typeof all, [string, string][]> = {
      op: names.op.map((name) => [name, name]),
      value: names.value.map((name) => [name, name]),
      run: [["*", "All runs"], ...runs.map((key): [string, string] => [key, titles[key] ?? key])],
    };
    const keys = keysOf(figure);
    for (const key of ["op", "value", "run"] as const) {
      const value = where.get(key) ?? "";
      const list = this.lists[key];
      fillList(list, value === "last" ? "" : value, [["", [["", all[key]], ...options[key]]]]);
      list.parentElement?.toggleAttribute("hidden", !keys.includes(key));
    }
  }
}

/** Options in groups; what was typed and is none of them becomes one. */
function fillList(list: HTMLSelectElement, chosen: string, groups: [string, string[][]][]): void {
  const known = groups.some(([, options]) => options.some(([value]) => value === chosen));
  const content = JSON.stringify([known ? "" : chosen, groups]);
  if (list.dataset.content === content) {
    list.value = chosen; // one that is open stays so
    return;
  }
  list.dataset.content = content;
  const made = groups.flatMap(([label, options]) => {
    const rows = options.map(([value = "", text = ""]) => h("option", { value, text }));
    return label === "" ? rows : rows.length > 0 ? [h("optgroup", { label }, ...rows)] : [];
  });
  list.replaceChildren(...(known ? [] : [h("option", { value: chosen, text: chosen })]), ...made);
  list.value = chosen;
}
