/** A line over the drawing that says what is the matter, with at most one thing to do about it. */

import { element } from "./toolbar";

export class Note {
  readonly root = element("div", { className: "note", hidden: true });

  /** An empty text takes the line away. */
  tell(text: string, act?: string, then?: () => void): void {
    this.root.hidden = text === "";
    this.root.replaceChildren(text);
    if (act !== undefined && then !== undefined) {
      const button = element("button", { type: "button", textContent: act });
      button.addEventListener("click", then);
      this.root.append(" ", button);
    }
  }
}
