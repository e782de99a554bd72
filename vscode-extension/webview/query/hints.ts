/** What helps where there is no answer: what to do, examples, what is wrong. */

import type { Mode, Problem, Schema } from "../../shared/query/messages";
import { fill, h } from "../dom";
import type { Item } from "./menu";
import { PLOT_EXAMPLES } from "./plotting";

export function emptyStage(): HTMLElement {
  return h(
    "div",
    { class: "empty" },
    h("p", { text: "Ctrl+Enter runs the query. F6 switches between the editor and the result." }),
    h("p", {
      text: "Examples lists queries to start from; the editor completes tables and columns.",
    }),
  );
}

export function exampleItems(
  mode: Mode,
  schema: Schema | undefined,
  run: (mode: Mode, text: string) => void,
): Item[] {
  const item = (label: string, detail: string, text: string): Item => ({
    label,
    detail,
    run: () => run(mode, text),
  });
  return mode === "plot"
    ? PLOT_EXAMPLES.map(([text, detail]) => item(text, detail, text))
    : (schema?.examples ?? []).map(({ title, what, sql }) => item(title, what, sql));
}

export function fillProblem(element: HTMLElement, { message, hint }: Problem): void {
  fill(
    element,
    h("span", { class: "codicon-error", "aria-hidden": "true", text: "✕" }),
    h("span", { class: "problem-text", text: message }),
    hint !== "" && h("span", { class: "problem-hint", text: hint }),
  );
  element.hidden = false;
}
