/** Which group of editors our views take, and how code and views share the window. */

export interface Group {
  /** Whether it shows one of our views, a text, and anything at all. */
  views: boolean;
  texts: boolean;
  empty: boolean;
}

/**
 * The column, from 1, for a view: where our views are, else beside the code. Nothing but a window with
 * one group gets another one. `code` is the column of the text that was looked at last.
 */
export function columnFor(groups: readonly Group[], code: number | undefined): number {
  // A timeline that was opened from the explorer may stand among the code.
  const room = groups.findIndex((group) => group.views && !group.texts);
  if (room >= 0) {
    return room + 1;
  }
  if (groups.length <= 1) {
    return groups[0] === undefined || groups[0].empty ? 1 : 2;
  }
  const text = code ?? groups.findIndex((group) => group.texts) + 1;
  return groups.length === text ? groups.length - 1 : groups.length;
}

/**
 * What is to be done when groups were others `before`: the group of views is locked, so that files
 * open beside it. It is unlocked where it is the last one and empty, else files would not open in it;
 * code that opens behind the views, which stood alone, gets its side back.
 */
export function restored(
  before: readonly Group[],
  now: readonly Group[],
): "unlock" | "swap" | undefined {
  const room = (group: Group | undefined) => group?.views && !group.texts;
  if (now.length === 1 && now[0]?.empty) {
    return before.some((group) => group.views) ? "unlock" : undefined;
  }
  const alone = before.length === 1 && room(before[0]);
  const behind = now.length === 2 && room(now[0]) && now[1]?.texts && !now[1].views;
  return alone && behind ? "swap" : undefined;
}

/** As `vscode.getEditorLayout` gives it; 0 is side by side, 1 one above the other. */
export interface Layout {
  orientation: 0 | 1;
  groups: { size?: number; groups?: unknown[] }[];
}

/** How a person has divided the window between code and views, side by side and one above the other. */
export type Shares = Partial<Record<Layout["orientation"], number[]>>;

const NARROW = 420; // of a view: below, neither it nor the code can be read
const LOW = 250;

/** Whether a window with one group has room for another beside it. */
export function hasColumns({ groups }: Layout): boolean {
  return (groups[0]?.size ?? 0) >= 2 * NARROW;
}

/**
 * The layout after a view was opened beside the code: divided as it was the last time, and one above
 * the other where columns are too narrow and there is height for both. Undefined: as it is.
 */
export function divided(
  now: Layout,
  view: { width: number; height: number },
  saved: Shares,
): Layout | undefined {
  const current = sharesOf(now);
  if (current === undefined) {
    return undefined;
  }
  const columns = saved[0] ?? current;
  const width = (view.width / (current[1] ?? 1)) * Math.min(...columns);
  const stacks = now.orientation === 0 && width < NARROW && view.height >= 2 * LOW;
  const orientation = stacks ? 1 : now.orientation;
  const sizes = saved[orientation] ?? (stacks ? [0.5, 0.5] : undefined);
  return sizes && { orientation, groups: sizes.map((size) => ({ size })) };
}

/**
 * The layout after a view was shown again, or among others, as the window may be another size by now:
 * where no two columns fit any more, one above the other; `stacked`, which is our doing, side by side
 * where they fit again. `at`: which of the two groups has the view. Undefined: as it is.
 */
export function rearranged(
  now: Layout,
  view: { width: number; height: number; at: number },
  saved: Shares,
  stacked: boolean,
): Layout | undefined {
  const current = sharesOf(now);
  if (current === undefined) {
    return undefined;
  }
  const half = [0.5, 0.5];
  const width = now.orientation === 0 ? view.width / (current[view.at] ?? 1) : view.width;
  const narrow = width < 2 * NARROW && view.height >= 2 * LOW;
  const fits = width * Math.min(...(saved[0] ?? half)) >= NARROW;
  if (now.orientation === 0 ? !narrow : !(stacked && fits)) {
    return undefined;
  }
  const orientation = now.orientation === 0 ? 1 : 0;
  return { orientation, groups: (saved[orientation] ?? half).map((size) => ({ size })) };
}

/** What part of the window each of two groups has; undefined where there are not two. */
export function sharesOf({ groups }: Layout): number[] | undefined {
  const sizes = groups.map(({ size = 0 }) => size);
  const whole = sizes.reduce((sum, size) => sum + size, 0);
  const pair = groups.length === 2 && groups.every((group) => group.groups === undefined);
  return pair && whole > 0 ? sizes.map((size) => size / whole) : undefined;
}
