/** A field whole, in a dialog: a table has only the beginning of a long text. */

import { element } from "./dom";

export function showField(text: string, copied: () => void, closed: () => void): void {
  const dialog = element("dialog", { class: "field", "aria-label": "Field" });
  const body = element("pre", { tabindex: 0, text });
  const copy = element("button", { text: "Copy", onclick: copied });
  const close = element("button", { text: "Close", onclick: () => dialog.close() });
  dialog.append(body, element("div", { class: "dialog-buttons" }, copy, close));
  dialog.addEventListener("close", () => {
    dialog.remove();
    closed();
  });
  document.body.append(dialog);
  dialog.showModal();
  body.focus();
}
