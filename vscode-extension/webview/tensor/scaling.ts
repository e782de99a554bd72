/** From elements to colours' places: 0 is the low end, 1 the high one. */

import type { ScaleChoice } from "../../shared/tensor/messages";

/** `log`: by the logarithm of the magnitude. */
export interface Scale {
  low: number;
  high: number;
  log: boolean;
}

const SAMPLE = 1 << 16; // elements that percentiles are taken of

/** What is known of elements, for a scale. */
export interface Extent {
  min: number;
  max: number;
  /** The smallest magnitude other than 0. */
  least: number;
}

/** Of the finite ones; undefined where there are none. */
export function extentOf(
  numbers: ArrayLike<number>,
  from = 0,
  to = numbers.length,
): Extent | undefined {
  let min = Number.POSITIVE_INFINITY;
  let max = Number.NEGATIVE_INFINITY;
  let least = Number.POSITIVE_INFINITY;
  for (let k = from; k < to; k++) {
    const x = numbers[k] as number;
    if (x - x !== 0) {
      continue; // NaN or infinite
    }
    if (x < min) min = x;
    if (x > max) max = x;
    const size = x < 0 ? -x : x;
    if (size > 0 && size < least) least = size;
  }
  return min <= max ? { min, max, least } : undefined;
}

/** The elements that lie at shares of the sorted finite ones, from a sample where there are many. */
export function percentiles(
  numbers: ArrayLike<number>,
  shares: readonly [number, number],
): [number, number] | undefined {
  const stride = Math.max(1, Math.floor(numbers.length / SAMPLE));
  const found: number[] = [];
  for (let k = 0; k < numbers.length; k += stride) {
    const x = numbers[k] as number;
    if (Number.isFinite(x)) {
      found.push(x);
    }
  }
  if (!found.length) {
    return undefined;
  }
  const sorted = Float64Array.from(found).sort();
  const at = (share: number) => {
    const place = share * (sorted.length - 1);
    const low = sorted[Math.floor(place)] as number;
    const high = sorted[Math.ceil(place)] as number;
    return low + (high - low) * (place - Math.floor(place));
  };
  return [at(shares[0]), at(shares[1])];
}

/** The scale for elements, by a choice. `extent`: what the ends are taken from. */
export function scaleOf(
  choice: ScaleChoice,
  extent: Extent | undefined,
  numbers: ArrayLike<number>,
): Scale {
  if (choice.mode === "fixed") {
    return { low: choice.low, high: choice.high, log: false };
  }
  if (!extent) {
    return { low: 0, high: 1, log: false };
  }
  const largest = Math.max(Math.abs(extent.min), Math.abs(extent.max));
  switch (choice.mode) {
    case "percentile": {
      const ends = percentiles(numbers, [0.01, 0.99]) ?? [extent.min, extent.max];
      return { low: ends[0], high: ends[1], log: false };
    }
    case "symmetric":
      return { low: -largest, high: largest, log: false };
    case "log": {
      const least = Number.isFinite(extent.least) ? extent.least : 1;
      return { low: least, high: largest || 1, log: true };
    }
    default:
      return { low: extent.min, high: extent.max, log: false };
  }
}

/** A function that gives the place of an element, between 0 and 1; the middle where low is high. */
export function placer(scale: Scale): (x: number) => number {
  if (scale.log) {
    const low = Math.log(scale.low);
    const width = Math.log(scale.high) - low;
    return (x) => {
      const size = Math.abs(x);
      return size <= scale.low ? 0 : width > 0 ? Math.min(1, (Math.log(size) - low) / width) : 0.5;
    };
  }
  const { low, high } = scale;
  const factor = 1 / (high - low);
  if (!(high > low)) {
    return () => 0.5;
  }
  if (!Number.isFinite(high - low) || !Number.isFinite(factor)) {
    return (x) => clamp(x / 2 / (high / 2 - low / 2) - low / 2 / (high / 2 - low / 2));
  }
  return (x) => clamp((x - low) * factor);
}

function clamp(t: number): number {
  return Math.max(0, Math.min(t, 1));
}
