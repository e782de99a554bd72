/** Which rows of a long table stand in its window. */

/** Browsers lay out nothing taller than some 33 million pixels. */
export const MOST_PIXELS = 30_000_000;
/** Rows above and below those that are seen, so that a short scroll finds them there. */
const SPARE = 8;

interface Scrolled {
  rows: number;
  rowHeight: number;
  /** Height of what is seen. */
  viewport: number;
  /** How far it is scrolled, in pixels. */
  top: number;
}

export interface Window {
  /** Height of the whole table, as the scroll bar has it. */
  height: number;
  /** The first row that is drawn, and how many are. */
  first: number;
  count: number;
  /** Where the first row stands, in pixels from the top of the table. */
  offset: number;
}

/** The rows to draw. A table that would be too tall is squeezed: the scroll bar moves more rows a pixel. */
export function windowOf({ rows, rowHeight, viewport, top }: Scrolled): Window {
  const whole = rows * rowHeight;
  const height = Math.min(whole, MOST_PIXELS);
  const scrolled = Math.max(0, Math.min(top, height - viewport));
  const at = height > viewport ? (scrolled / (height - viewport)) * (whole - viewport) : 0;
  const seen = Math.floor(at / rowHeight);
  const first = Math.max(0, seen - SPARE);
  const last = Math.min(rows, seen + Math.ceil(viewport / rowHeight) + 1 + SPARE);
  return {
    height,
    first,
    count: Math.max(0, last - first),
    offset: scrolled - at + first * rowHeight,
  };
}

/** How far to scroll so that a row is seen: not at all where it is already. */
export function scrollTo(row: number, scrolled: Scrolled): number {
  const { rows, rowHeight, viewport, top } = scrolled;
  const whole = rows * rowHeight;
  const height = Math.min(whole, MOST_PIXELS);
  if (height <= viewport) {
    return 0;
  }
  const ratio = (whole - viewport) / (height - viewport);
  const at = top * ratio;
  const target = Math.min(Math.max(at, (row + 1) * rowHeight - viewport), row * rowHeight);
  return target === at ? top : target / ratio;
}

/** The pages of so many rows that hold these rows. */
export function pagesOf(first: number, count: number, size: number): number[] {
  const pages: number[] = [];
  for (let page = Math.floor(first / size); page * size < first + count; page++) {
    pages.push(page);
  }
  return pages;
}
