/**
 * Colour maps, tables where they are needed: their lightness in OKLab (B. Ottosson, 2020) is even, so
 * that equal steps look equal, also without colours. NaN and its like have colours of their own.
 */

import type { MapName } from "../../shared/tensor/messages";
import { NAN, NEGINF, POSINF, UNWRITTEN } from "./elements";

export const MAPS: Record<MapName, string> = {
  viola: "violet to yellow",
  diverging: "blue, white, orange",
  grey: "black to white",
};

type Rgb = readonly [number, number, number];

const SIZE = 256;

/** Colours of what is no number, by kind. */
export const SPECIAL: Record<number, Rgb> = {
  [NAN]: [255, 0, 200],
  [POSINF]: [255, 40, 40],
  [NEGINF]: [0, 200, 255],
  [UNWRITTEN]: [128, 128, 128],
};

const tables = new Map<MapName, Uint8ClampedArray>();

/** 256 colours, three bytes each. */
export function table(name: MapName): Uint8ClampedArray {
  let found = tables.get(name);
  if (!found) {
    found = new Uint8ClampedArray(SIZE * 3);
    for (let k = 0; k < SIZE; k++) {
      found.set(COLOUR[name](k / (SIZE - 1)), k * 3);
    }
    tables.set(name, found);
  }
  return found;
}

/** The colour at a place of a map. */
export function colourAt(name: MapName, place: number): Rgb {
  const colours = table(name);
  const k = Math.round(place * (SIZE - 1)) * 3;
  return [colours[k] as number, colours[k + 1] as number, colours[k + 2] as number];
}

const COLOUR: Record<MapName, (t: number) => Rgb> = {
  grey: (t) => [255 * t, 255 * t, 255 * t], // sRGB is even in lightness by itself
  // Lightness rises evenly while the hue turns from violet over blue and green to yellow.
  viola: (t) =>
    fromOklch(0.2 + 0.74 * t, 0.09 + 0.09 * Math.sin(Math.PI * (0.15 + 0.6 * t)), 302 - 197 * t),
  // Two hues that are told apart by all kinds of eyes, as far from white as from each other.
  diverging: (t) => {
    const away = Math.abs(2 * t - 1);
    return fromOklch(
      0.97 - 0.57 * away,
      0.15 * Math.sin((Math.PI / 2) * away ** 0.85),
      t < 0.5 ? 255 : 52,
    );
  },
};

/** A colour of sRGB; where there is none of that chroma, the strongest of its lightness and hue. */
function fromOklch(lightness: number, chroma: number, hue: number): Rgb {
  let low = 0;
  let high = chroma;
  let found = toLinear(lightness, high, hue);
  if (!inside(found)) {
    for (let k = 0; k < 20; k++) {
      const middle = (low + high) / 2;
      if (inside(toLinear(lightness, middle, hue))) {
        low = middle;
      } else {
        high = middle;
      }
    }
    found = toLinear(lightness, low, hue);
  }
  return [gamma(found[0]), gamma(found[1]), gamma(found[2])];
}

function inside(rgb: Rgb): boolean {
  return rgb.every((c) => c >= -1e-4 && c <= 1 + 1e-4);
}

/** OKLab's inverse transform, with its published coefficients. */
function toLinear(lightness: number, chroma: number, hue: number): Rgb {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
}

function gamma(c: number): number {
  const x = Math.max(0, Math.min(1, c));
  return Math.round(255 * (x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055));
}
