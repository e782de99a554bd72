/** Which axes of a tensor are seen: rows, columns, tiles, colours; the others stand at an index. */

/** `rows`, `columns`, `tiles`, `colours`: numbers of axes, -1 where there is none. */
export interface Axes {
  rows: number;
  columns: number;
  tiles: number;
  colours: number;
  /** Of each axis the index at which it stands, where it is none of those. */
  at: number[];
}

export type Role = "rows" | "columns" | "tiles" | "colours";
export const ROLES: readonly Role[] = ["rows", "columns", "tiles", "colours"];

/** Tiles that are drawn at a time; an axis that has more is looked at by parts. */
export const MOST_TILES = 1024;

/** What is looked at first: of `[N, C, H, W]` one sample's channels, or all samples in colours. */
export function defaultAxes(shape: readonly number[]): Axes {
  const rank = shape.length;
  const axes: Axes = { rows: -1, columns: -1, tiles: -1, colours: -1, at: shape.map(() => 0) };
  if (rank === 0) {
    return axes;
  }
  axes.columns = rank - 1;
  if (rank === 1) {
    return axes;
  }
  axes.rows = rank - 2;
  if (rank === 2) {
    return axes;
  }
  const last = shape[rank - 1] as number;
  const third = shape[rank - 3] as number;
  if (last === 3 && (shape[rank - 2] as number) > 3 && third > 3) {
    axes.colours = rank - 1;
    axes.columns = rank - 2;
    axes.rows = rank - 3;
    axes.tiles = rank - 4;
    return axes;
  }
  axes.tiles = rank - 3;
  if (rank > 3 && third === 3) {
    axes.colours = rank - 3;
    axes.tiles = rank - 4;
  } else if (rank > 3 && third === 1) {
    axes.tiles = rank - 4;
  }
  return axes;
}

/** The role of an axis, if it has one. */
export function roleOf(axes: Axes, axis: number): Role | undefined {
  return ROLES.find((role) => axes[role] === axis);
}

/** The axes after one was given a role (or none): who had that role takes the other's. */
export function withRole(axes: Axes, axis: number, role: Role | undefined): Axes {
  const next: Axes = { ...axes, at: [...axes.at] };
  const before = roleOf(axes, axis);
  if (before) {
    next[before] = role && axes[role] >= 0 ? axes[role] : -1;
  }
  if (role) {
    next[role] = axis;
  }
  return next;
}

/** Whether axes that were remembered fit a shape; their indices are brought into it. */
export function fitAxes(axes: Axes | undefined, shape: readonly number[]): Axes {
  if (!axes || axes.at.length !== shape.length) {
    return defaultAxes(shape);
  }
  const wrong = ROLES.some((role) => axes[role] >= shape.length);
  if (wrong || (axes.colours >= 0 && shape[axes.colours] !== 3)) {
    return defaultAxes(shape);
  }
  const at = axes.at.map((k, axis) => Math.max(0, Math.min(k, (shape[axis] as number) - 1)));
  return { ...axes, at };
}

/** Length of an axis with a role; 1 where there is none. */
export function sizeOf(shape: readonly number[], axis: number): number {
  return axis < 0 ? 1 : (shape[axis] as number);
}
