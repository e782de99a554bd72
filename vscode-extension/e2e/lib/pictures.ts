/** Reading what a canvas shows. */

import { expect, type FrameLocator } from "@playwright/test";

/** Moves the pointer over a picture in `count` rows and columns; what the view says of each place, and its pixel. */
export async function walk(
  view: FrameLocator,
  count: number,
): Promise<{ text: string; rgb: number[] }[]> {
  const canvas = view.locator("canvas").first();
  await expect(canvas).toBeVisible();
  return canvas.evaluate((element, places) => {
    const picture = element as HTMLCanvasElement;
    const box = picture.getBoundingClientRect();
    const context = picture.getContext("2d") as CanvasRenderingContext2D;
    const pixels = context.getImageData(0, 0, picture.width, picture.height).data;
    const said = picture.ownerDocument.querySelector("output.hover");
    const found = [];
    for (let k = 0; k < places * places; k++) {
      const x = ((k % places) + 0.5) / places;
      const y = (Math.floor(k / places) + 0.5) / places;
      const at = { clientX: box.left + box.width * x, clientY: box.top + box.height * y };
      picture.dispatchEvent(
        new PointerEvent("pointermove", { ...at, bubbles: true, pointerId: 1 }),
      );
      const pixel =
        (Math.floor(picture.height * y) * picture.width + Math.floor(picture.width * x)) * 4;
      found.push({ text: said?.textContent ?? "", rgb: [...pixels.slice(pixel, pixel + 3)] });
    }
    return found;
  }, count);
}
