/** A field whole, in a dialog: a table has only the beginning of a long text. */

import { h } from "../dom";

export function showField(text: string, copied: () => void, closed: () => void): void {
  const dialog = h("dialog", { class: "field", "aria-label": "Field" });
  const body = h("pre", { tabindex: 0, text });
  const copy = h("button", { text: "Copy", onclick: copied });
  const close = h("button", { text: "Close", onclick: () => dialog.close() });
  dialog.append(body, h("div", { class: "dialog-buttons" }, copy, close));
  dialog.addEventListener("close", () => {
    dialog.remove();
    closed();
  });
  document.body.append(dialog);
  dialog.showModal();
  body.focus();
}
