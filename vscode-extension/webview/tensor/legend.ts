/** What colours mean: the ends of a scale, and the map between them. */

import type { MapName } from "../../shared/tensor/messages";
import { h } from "../dom";
import { colourAt } from "./colours";
import { formatNumber } from "./dom";
import type { Scale } from "./scaling";

/** `colours`: three channels are shown as colours, and each goes from black to full. */
export function legend(scale: Scale, map: MapName, colours: boolean): HTMLElement {
  if (colours) {
    return h(
      "span",
      { class: "legend" },
      `black ${formatNumber(scale.low)} · white ${formatNumber(scale.high)}`,
    );
  }
  const stops = Array.from({ length: 17 }, (_, k) => `rgb(${colourAt(map, k / 16).join(" ")})`);
  return h(
    "span",
    { class: "legend" },
    formatNumber(scale.low),
    h("i", {
      class: "ramp",
      style: `background: linear-gradient(to right, ${stops.join(", ")})`,
    }),
    formatNumber(scale.high),
    scale.log && " (log)",
  );
}
