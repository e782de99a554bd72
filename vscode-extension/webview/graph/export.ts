/** The whole picture as a file of its own: the colours of the theme are written into it. */

import type { Drawing } from "./drawing";
import { svg } from "./drawing";

const STYLES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-opacity",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "font-style",
  "text-anchor",
  "display",
  "visibility",
  "paint-order",
];
const MOST_PIXELS = 8192; // along a side of a PNG: browsers draw no larger canvas

export function asSvg(drawing: Drawing, surface: SVGSVGElement): string {
  drawing.show(null);
  const { width, height } = drawing.size;
  const copy = svg("svg", {
    xmlns: "http://www.w3.org/2000/svg",
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
  });
  const background = getComputedStyle(document.body).backgroundColor;
  copy.append(svg("rect", { width, height, fill: background }));
  for (const child of surface.querySelectorAll(":scope > defs")) {
    copy.append(styledCopy(child));
  }
  const picture = styledCopy(drawing.root);
  picture.removeAttribute("transform");
  copy.append(picture);
  return new XMLSerializer().serializeToString(copy);
}

/** A copy with the style that the page gives it; without what is not seen. */
function styledCopy(element: Element): Element {
  const copy = element.cloneNode(false) as Element;
  const style = getComputedStyle(element);
  for (const name of STYLES) {
    const value = style.getPropertyValue(name);
    if (value !== "") {
      copy.setAttribute(name, value);
    }
  }
  for (const name of ["class", "id", "role", "data-key", "data-act", "data-link"]) {
    if (!(name === "id" && element.closest("defs"))) {
      copy.removeAttribute(name);
    }
  }
  for (const child of element.childNodes) {
    if (child instanceof Element) {
      const seen = getComputedStyle(child);
      const hidden =
        seen.display === "none" || seen.visibility === "hidden" || seen.opacity === "0";
      if (!hidden && !child.matches(".grip, .act, .target")) {
        copy.append(styledCopy(child));
      }
    } else {
      copy.append(child.cloneNode());
    }
  }
  return copy;
}

/** The picture as PNG in base64, at twice the size where that can be. */
export async function asPng(drawing: Drawing, surface: SVGSVGElement): Promise<string> {
  const text = asSvg(drawing, surface);
  const { width, height } = drawing.size;
  const scale = Math.min(2, MOST_PIXELS / width, MOST_PIXELS / height);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(width * scale);
  canvas.height = Math.ceil(height * scale);
  const context = canvas.getContext("2d");
  context?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/png").replace(/^data:image\/png;base64,/, "");
}
