/** How the columns of the table of values share a view that is too narrow for all of them. */

import { COLUMNS } from "./rows";

/** The columns that are to be in sight: up to the mean. */
export const FITTED = COLUMNS.indexOf("mean") + 1;
/** Characters that are left of a name and of a type, of which the ends can be read under the mouse. */
const LEAST = [10, 8];

/** Widths that let the first columns fit into `room`: names and types give of what they can spare. */
export function fitted(widths: readonly number[], room: number): number[] {
  const wanted = widths.slice(0, FITTED).reduce((sum, width) => sum + width, 0);
  const spare = LEAST.map((least, k) => Math.max(0, (widths[k] ?? 0) - least));
  const all = spare.reduce((sum, width) => sum + width, 0);
  const share = all > 0 ? Math.min(1, Math.max(0, wanted - room) / all) : 0;
  return widths.map((width, k) => width - (spare[k] ?? 0) * share);
}
