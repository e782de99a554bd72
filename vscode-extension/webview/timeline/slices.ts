/** The slices of a line, one of which is selected. */

import { duration } from "../../shared/format";
import type { LineSlice } from "../../shared/timeline/messages";

/** `2 of 20 · step 1` and the name, for the row above the timeline. */
export function describeSlice(slices: readonly LineSlice[], at: number): string {
  const slice = slices[at];
  if (slice === undefined) {
    return "";
  }
  const runs = new Set(slices.map((s) => s.run)).size;
  const run = runs > 1 ? ` of run ${slice.run}` : "";
  return `${slice.name} · ${at + 1} of ${slices.length} · step ${slice.step}${run} · ${duration(Number(slice.dur) / 1e9)}`;
}

/** Another slice of the same line: `by` further, from the end to the beginning. */
export function nextIndex(count: number, at: number, by: number): number {
  return count === 0 ? -1 : (at + by + count) % count;
}
