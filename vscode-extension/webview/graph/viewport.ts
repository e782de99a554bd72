/** Panning and zooming: what part of the picture the window shows. */

interface View {
  x: number;
  y: number;
  scale: number;
}

const LEAST = 0.02;
const MOST = 4;
const THRESHOLD = 4; // pixels that a pointer moves before it drags

export class Viewport {
  view: View = { x: 0, y: 0, scale: 1 };
  private frame = 0;

  constructor(
    private readonly surface: SVGSVGElement,
    private readonly moved: () => void,
  ) {
    surface.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    surface.addEventListener("pointerdown", (event) => this.drag(event));
  }

  get size(): { width: number; height: number } {
    return { width: this.surface.clientWidth, height: this.surface.clientHeight };
  }

  /** The part of the picture in the window, with a border of half a window. */
  part(border = 0.5): { left: number; top: number; right: number; bottom: number } {
    const { x, y, scale } = this.view;
    const { width, height } = this.size;
    const [w, h] = [(width * border) / scale, (height * border) / scale];
    return {
      left: -x / scale - w,
      top: -y / scale - h,
      right: (width - x) / scale + w,
      bottom: (height - y) / scale + h,
    };
  }

  set(view: View): void {
    this.view = { ...view, scale: Math.min(MOST, Math.max(LEAST, view.scale)) };
    if (this.frame === 0) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.moved();
      });
    }
  }

  zoom(factor: number, at?: { x: number; y: number }): void {
    const { width, height } = this.size;
    const { x, y } = at ?? { x: width / 2, y: height / 2 };
    const scale = Math.min(MOST, Math.max(LEAST, this.view.scale * factor));
    const ratio = scale / this.view.scale;
    this.set({ x: x - (x - this.view.x) * ratio, y: y - (y - this.view.y) * ratio, scale });
  }

  pan(x: number, y: number): void {
    this.set({ ...this.view, x: this.view.x + x, y: this.view.y + y });
  }

  /** The whole picture; never larger than life. */
  fit(picture: { width: number; height: number }): void {
    const { width, height } = this.size;
    if (picture.width === 0 || width === 0) {
      return;
    }
    const scale = Math.min(1, (width - 24) / picture.width, (height - 24) / picture.height);
    const x = (width - picture.width * scale) / 2;
    this.set({ x, y: Math.max(12, (height - picture.height * scale) / 2), scale });
  }

  /** A point of the picture in the middle. */
  center(x: number, y: number, scale = this.view.scale): void {
    const { width, height } = this.size;
    this.set({ x: width / 2 - x * scale, y: height / 2 - y * scale, scale });
  }

  /** Brings a box into the window, moving no more than it takes. */
  reveal({ x, y, width, height }: { x: number; y: number; width: number; height: number }): void {
    const margin = 40;
    const { scale } = this.view;
    const size = this.size;
    const shift = (low: number, high: number, room: number) => {
      if (high - low > room - 2 * margin) {
        return room / 2 - (low + high) / 2;
      }
      return low < margin ? margin - low : high > room - margin ? room - margin - high : 0;
    };
    const left = (x - width / 2) * scale + this.view.x;
    const top = (y - height / 2) * scale + this.view.y;
    const dx = shift(left, left + width * scale, size.width);
    const dy = shift(top, top + height * scale, size.height);
    if (dx !== 0 || dy !== 0) {
      this.pan(dx, dy);
    }
  }

  private wheel(event: WheelEvent): void {
    event.preventDefault();
    const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    if (event.shiftKey) {
      this.pan(-(event.deltaX + event.deltaY) * unit, 0);
    } else if (event.ctrlKey || event.metaKey || Math.abs(event.deltaX) < 1) {
      const strength = event.ctrlKey ? 0.01 : 0.0016;
      const { left, top } = this.surface.getBoundingClientRect();
      const at = { x: event.clientX - left, y: event.clientY - top };
      this.zoom(Math.exp(-event.deltaY * unit * strength), at);
    } else {
      this.pan(-event.deltaX * unit, -event.deltaY * unit);
    }
  }

  private drag(event: PointerEvent): void {
    const onNode = event.target instanceof Element && event.target.closest("[data-key].node");
    if (event.button > 1 || (event.button === 0 && onNode)) {
      return;
    }
    let last = { x: event.clientX, y: event.clientY };
    let dragging = false;
    const move = (e: PointerEvent) => {
      const [x, y] = [e.clientX - last.x, e.clientY - last.y];
      if (!dragging && Math.hypot(x, y) > THRESHOLD) {
        // Not before: a click is told to whoever has the pointer.
        dragging = true;
        this.surface.setPointerCapture(event.pointerId);
        this.surface.classList.add("dragging");
      }
      if (dragging) {
        this.pan(x, y);
        last = { x: e.clientX, y: e.clientY };
      }
    };
    const end = () => {
      this.surface.classList.remove("dragging");
      this.surface.removeEventListener("pointermove", move);
      this.surface.removeEventListener("pointerup", end);
      this.surface.removeEventListener("pointercancel", end);
    };
    this.surface.addEventListener("pointermove", move);
    this.surface.addEventListener("pointerup", end);
    this.surface.addEventListener("pointercancel", end);
  }
}
