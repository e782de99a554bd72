/** A button that opens a menu. */

import { h } from "../dom";

export interface Item {
  label: string;
  /** More words, in a second line. */
  detail?: string;
  run(): void;
}

let open: (() => void) | undefined;

/** A button that opens a menu: arrows, Home, End, letters, Enter and Escape work in it. */
export function menuButton(
  label: string,
  title: string,
  items: () => Item[],
  empty: string,
): HTMLButtonElement {
  const button = h("button", {
    class: "menu-button",
    title,
    "aria-haspopup": "menu",
    "aria-expanded": "false",
    text: label,
  });
  button.addEventListener("click", () => {
    const mine = button.getAttribute("aria-expanded") === "true";
    open?.();
    if (!mine) {
      open = show(button, items(), empty);
    }
  });
  button.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && button.getAttribute("aria-expanded") !== "true") {
      event.preventDefault();
      button.click();
    }
  });
  return button;
}

function show(button: HTMLButtonElement, items: Item[], empty: string): () => void {
  const menu = h("div", { class: "menu", role: "menu", tabindex: -1 });
  const entries = items.map((item) => {
    const entry = h("button", { role: "menuitem", tabindex: -1, class: "menu-item" });
    entry.append(h("span", { class: "menu-label", text: item.label }));
    if (item.detail) {
      entry.append(h("span", { class: "menu-detail", text: item.detail }));
    }
    entry.addEventListener("click", () => {
      close();
      item.run();
    });
    return entry;
  });
  menu.append(...(entries.length ? entries : [h("div", { class: "menu-empty", text: empty })]));
  document.body.append(menu);
  positionMenu(menu, button);
  button.setAttribute("aria-expanded", "true");
  // What is around the page would be scrolled, too, where the menu reaches beyond it.
  (entries[0] ?? menu).focus({ preventScroll: true });

  const outside = (event: MouseEvent) => {
    const target = event.target as Node;
    if (!menu.contains(target) && !button.contains(target)) {
      close();
    }
  };
  const close = () => {
    menu.remove();
    button.setAttribute("aria-expanded", "false");
    document.removeEventListener("mousedown", outside, true);
    window.removeEventListener("blur", close);
    open = undefined;
  };
  document.addEventListener("mousedown", outside, true);
  window.addEventListener("blur", close);
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape" || event.key === "Tab") {
      event.preventDefault();
      close();
      button.focus();
      return;
    }
    const next = entryForKey(event.key, entries, document.activeElement);
    if (next) {
      event.preventDefault();
      next.focus();
    }
  });
  return close;
}

function entryForKey(
  key: string,
  entries: HTMLElement[],
  active: Element | null,
): HTMLElement | undefined {
  const at = entries.indexOf(active as HTMLElement);
  const count = entries.length;
  switch (key) {
    case "ArrowDown":
      return entries[(at + 1) % count];
    case "ArrowUp":
      return entries[(at - 1 + count) % count];
    case "Home":
      return entries[0];
    case "End":
      return entries[count - 1];
  }
  if (key.length !== 1) {
    return undefined;
  }
  const rest = [...entries.slice(at + 1), ...entries.slice(0, at + 1)];
  return rest.find((e) => e.textContent?.toLowerCase().startsWith(key.toLowerCase()));
}

function positionMenu(menu: HTMLElement, button: HTMLElement): void {
  const at = button.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  const left = Math.max(4, Math.min(at.left, window.innerWidth - width - 4));
  const below = at.bottom + 2 + height <= window.innerHeight || at.top < height;
  menu.style.left = `${left}px`;
  menu.style.top = below ? `${at.bottom + 2}px` : `${at.top - height - 2}px`;
  menu.style.maxHeight = `${(below ? window.innerHeight - at.bottom : at.top) - 8}px`;
}
