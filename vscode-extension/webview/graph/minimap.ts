/** The whole picture in small, where it is larger than the window; drag in it to move. */

import { freeCorner } from "./corner";
import type { Drawing } from "./drawing";
import type { Box } from "./layout";
import type { Viewport } from "./viewport";

const WIDEST = 180;
const HIGHEST = 160;
export class Minimap {
  readonly canvas = document.createElement("canvas");
  private scale = 1;

  constructor(
    private readonly drawing: Drawing,
    private readonly viewport: Viewport,
  ) {
    this.canvas.className = "minimap";
    this.canvas.setAttribute("aria-hidden", "true");
    const go = (event: PointerEvent) => {
      const { left, top } = this.canvas.getBoundingClientRect();
      const x = (event.clientX - left) / this.scale;
      const y = (event.clientY - top) / this.scale;
      this.viewport.center(x, y);
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      go(event);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.buttons & 1) {
        go(event);
      }
    });
  }

  /** Goes where it covers least; not while one moves the picture, which it would run away from. */
  settle(): void {
    this.paint();
    const { x, y, scale } = this.viewport.view;
    const placed = ({ box }: { box: Box }) => ({
      x: box.x * scale + x,
      y: box.y * scale + y,
      width: box.width * scale,
      height: box.height * scale,
    });
    const nodes = this.drawing.boxes.filter(({ shown }) => !shown.frame).map(placed);
    this.canvas.dataset.corner = freeCorner(
      [...nodes, ...this.drawing.labels.map((box) => placed({ box }))],
      this.viewport.size,
      {
        width: this.canvas.width / devicePixelRatio,
        height: this.canvas.height / devicePixelRatio,
      },
    );
  }

  paint(): void {
    const { width, height } = this.drawing.size;
    const part = this.viewport.part(0);
    const fits = part.left <= 0 && part.top <= 0 && part.right >= width && part.bottom >= height;
    this.canvas.hidden = width === 0 || fits;
    const context = this.canvas.getContext("2d");
    if (this.canvas.hidden || context === null) {
      return;
    }
    const room = this.canvas.parentElement ?? document.body;
    const widest = Math.min(WIDEST, room.clientWidth / 4);
    const highest = Math.min(HIGHEST, room.clientHeight / 3);
    this.scale = Math.min(widest / width, highest / height);
    const ratio = devicePixelRatio;
    const size = {
      width: Math.max(24, width * this.scale),
      height: Math.max(24, height * this.scale),
    };
    this.canvas.style.width = `${size.width}px`;
    this.canvas.style.height = `${size.height}px`;
    this.canvas.width = size.width * ratio;
    this.canvas.height = size.height * ratio;
    context.scale(ratio * this.scale, ratio * this.scale);
    const style = getComputedStyle(this.canvas);
    for (const { shown, box } of this.drawing.boxes) {
      if (shown.frame) {
        continue;
      }
      const there = this.drawing.element(shown.key)?.classList;
      const colour = there?.contains("is-now")
        ? "--now"
        : there?.contains("tainted")
          ? "--nan"
          : there?.contains("cursor")
            ? "--focus"
            : "--dim";
      context.fillStyle = style.getPropertyValue(colour) || "gray";
      context.fillRect(box.x - box.width / 2, box.y - box.height / 2, box.width, box.height);
    }
    context.strokeStyle = style.getPropertyValue("--focus") || "gray";
    context.lineWidth = 1.5 / this.scale;
    context.strokeRect(part.left, part.top, part.right - part.left, part.bottom - part.top);
  }
}
