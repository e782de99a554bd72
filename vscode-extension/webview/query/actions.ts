/** The buttons beside an answer: what can be done with its rows, or with its chart. */

import { h } from "../dom";
import { type Item, menuButton } from "./menu";

interface OfRows {
  /** Undefined where there is nothing that could be drawn. */
  plot: (() => void) | undefined;
  copy: (format: "csv" | "markdown" | "json") => void;
  write: (format: "csv" | "json") => void;
}

export function answerActions({ plot, copy, write }: OfRows): HTMLElement[] {
  return [
    h("button", {
      text: "Plot",
      title: "Plot the numeric columns over the first one",
      disabled: !plot,
      onclick: () => plot?.(),
    }),
    menuButton(
      "Copy",
      "Copy all rows",
      () => [
        { label: "As CSV", run: () => copy("csv") },
        { label: "As a Markdown table", run: () => copy("markdown") },
        { label: "As JSON", run: () => copy("json") },
      ],
      "",
    ),
    menuButton(
      "Export",
      "Write all rows to a file",
      () => [
        { label: "CSV …", run: () => write("csv") },
        { label: "JSON …", run: () => write("json") },
      ],
      "",
    ),
  ];
}

/** `points` writes them all, where they come from a text of their own. */
export function chartActions(picture: () => void, points: (() => void) | undefined): HTMLElement[] {
  const items: Item[] = [{ label: "Picture (PNG) …", run: picture }];
  if (points) {
    items.push({ label: "All points (CSV) …", run: points });
  }
  return [menuButton("Export", "Write the chart to a file", () => items, "")];
}
