/** Elements that somebody pinned: their values at each stop, with those before. */

import { elementExpression } from "../../shared/tensor/parts";
import { fill, h } from "../dom";
import { type Connection, Outdated } from "./connection";
import type { Model } from "./model";

const MOST = 9;

export class Pins {
  readonly node = h("ul", { class: "pins", "aria-label": "Pinned elements" });

  constructor(
    private readonly model: Model,
    private readonly connection: Connection,
    private readonly goTo: (place: number[]) => void,
    private readonly changed: () => void,
  ) {}

  /** Pins an element, or lets go of one that is pinned. */
  toggle(place: number[]): void {
    const { pins } = this.model;
    const at = pins.findIndex((p) => String(p.place) === String(place));
    if (at >= 0) {
      pins.splice(at, 1);
    } else {
      pins.push({ place, text: "…" });
      pins.splice(0, Math.max(0, pins.length - MOST));
    }
    void this.refresh();
    this.changed();
  }

  /** Asks for the values as they are now. */
  async refresh(): Promise<void> {
    const { model } = this;
    this.show();
    for (const pin of [...model.pins]) {
      try {
        const expression = elementExpression(model.subject.expression, pin.place);
        const slice = await this.connection.call("slice", { expression });
        const text = model.elements(slice).text(0);
        pin.was = pin.text !== "…" && pin.text !== text ? pin.text : pin.was;
        pin.text = text;
      } catch (error) {
        if (error instanceof Outdated) {
          return;
        }
        pin.text = "not there";
      }
    }
    this.show();
  }

  /** Draws what is known of them. */
  show(): void {
    const items = this.model.pins.map((pin, k) =>
      h(
        "li",
        {},
        h(
          "button",
          { class: "link", title: "Show it", onclick: () => this.goTo(pin.place) },
          `${k + 1}: [${pin.place.join(", ")}] = ${pin.text}`,
        ),
        pin.was !== undefined && h("span", { class: "was" }, `was ${pin.was}`),
        h(
          "button",
          { class: "flat", "aria-label": `Unpin ${k + 1}`, onclick: () => this.toggle(pin.place) },
          "×",
        ),
      ),
    );
    // The line is there before it is needed: the picture would shrink under the mouse.
    const hint = h("li", { class: "hint" }, "Click an element to keep its value here.");
    fill(this.node, ...(items.length ? items : [hint]));
    this.node.hidden = !items.length && this.model.view.mode !== "picture";
  }
}
