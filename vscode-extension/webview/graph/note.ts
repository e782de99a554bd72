/** A line over the drawing that says what is the matter, with at most one thing to do about it. */

import { h } from "../dom";

export class Note {
  readonly root = h("div", { class: "note", hidden: true });

  /** An empty text takes the line away. */
  show(text: string, act?: string, then?: () => void): void {
    this.root.hidden = text === "";
    this.root.replaceChildren(text);
    if (act !== undefined && then !== undefined) {
      const button = h("button", { type: "button", text: act });
      button.addEventListener("click", then);
      this.root.append(" ", button);
    }
  }
}
