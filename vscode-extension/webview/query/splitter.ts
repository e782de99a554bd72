/** A border between question and answer that is dragged, or moved by the arrow keys. */

import { h } from "../dom";

const LEAST = 44; // pixels
const MOST = 0.7; // of the window's height

export function splitter(box: HTMLElement): HTMLElement {
  const border = h("div", {
    class: "splitter",
    role: "separator",
    tabindex: 0,
    "aria-orientation": "horizontal",
    "aria-label": "Height of the query",
  });
  const set = (height: number) => {
    box.style.height = `${Math.max(LEAST, Math.min(height, window.innerHeight * MOST))}px`;
  };
  border.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      set(box.offsetHeight + (event.key === "ArrowDown" ? 20 : -20));
    }
  });
  border.addEventListener("pointerdown", (event) => {
    border.setPointerCapture(event.pointerId);
    const [start, height] = [event.clientY, box.offsetHeight];
    const move = (moved: PointerEvent) => set(height + moved.clientY - start);
    border.addEventListener("pointermove", move);
    border.addEventListener("pointerup", () => border.removeEventListener("pointermove", move), {
      once: true,
    });
  });
  return border;
}
