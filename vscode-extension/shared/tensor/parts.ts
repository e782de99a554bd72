/** Parts of a tensor that are asked for: what is seen and no more, thinned where pixels are few. */

import type { Axes } from "./axes";
import { sizeOf } from "./axes";

/** Indices `from` to `to` (exclusive), every `step`-th. */
export interface Span {
  from: number;
  to: number;
  step: number;
}

/** A part of what the axes show. */
export interface Part {
  axes: Axes;
  tiles: Span;
  rows: Span;
  columns: Span;
}

/** How many indices are in a span. */
export function countOf(span: Span): number {
  return Math.max(0, Math.ceil((span.to - span.from) / span.step));
}

function wholeSpan(size: number, step = 1): Span {
  return { from: 0, to: size, step };
}

/** All that the axes show. */
export function wholePart(axes: Axes, shape: readonly number[], step = 1): Part {
  return {
    axes,
    tiles: wholeSpan(sizeOf(shape, axes.tiles)),
    rows: wholeSpan(sizeOf(shape, axes.rows), step),
    columns: wholeSpan(sizeOf(shape, axes.columns), step),
  };
}

/** Elements of a part. */
export function elementsOf(part: Part): number {
  const colours = part.axes.colours < 0 ? 1 : 3;
  return countOf(part.tiles) * countOf(part.rows) * countOf(part.columns) * colours;
}

/** An expression of which an index may be taken. */
export function operand(expression: string): string {
  return /^(?:[A-Za-z_][\w.]*|`[^`]+`)$/.test(expression) ? expression : `(${expression})`;
}

/** `x[0, 3, ::2, ::2]`: the expression that gives a part. */
export function partExpression(expression: string, shape: readonly number[], part: Part): string {
  if (shape.length === 0) {
    return expression;
  }
  const { axes } = part;
  const items = shape.map((size, axis) => {
    switch (axis) {
      case axes.tiles:
        return spanText(part.tiles, size);
      case axes.rows:
        return spanText(part.rows, size);
      case axes.columns:
        return spanText(part.columns, size);
      case axes.colours:
        return ":";
      default:
        return String(axes.at[axis] ?? 0);
    }
  });
  while (items.length && items[items.length - 1] === ":") {
    items.pop();
  }
  return items.length ? `${operand(expression)}[${items.join(", ")}]` : expression;
}

/** `x[1, 2]` */
export function elementExpression(expression: string, place: readonly number[]): string {
  return place.length ? `${operand(expression)}[${place.join(", ")}]` : expression;
}

function spanText(span: Span, size: number): string {
  const from = span.from > 0 ? String(span.from) : "";
  const to = span.to < size ? String(span.to) : "";
  return `${from}:${to}${span.step > 1 ? `:${span.step}` : ""}`;
}

/**
 * Where the elements of a part lie in the array that came, whose axes are in the tensor's order:
 * distances between neighbours along each role. An axis without a role is not in it.
 */
export function stridesOf(
  part: Part,
  rank: number,
): {
  tiles: number;
  rows: number;
  columns: number;
  colours: number;
} {
  const { axes } = part;
  const found = { tiles: 0, rows: 0, columns: 0, colours: 0 };
  let distance = 1;
  for (let axis = rank - 1; axis >= 0; axis--) {
    if (axis === axes.columns) {
      found.columns = distance;
      distance *= countOf(part.columns);
    } else if (axis === axes.rows) {
      found.rows = distance;
      distance *= countOf(part.rows);
    } else if (axis === axes.tiles) {
      found.tiles = distance;
      distance *= countOf(part.tiles);
    } else if (axis === axes.colours) {
      found.colours = distance;
      distance *= 3;
    }
  }
  return found;
}

/** The place in the tensor of what is seen at a tile, a row and a column. */
export function placeOf(axes: Axes, tile: number, row: number, column: number): number[] {
  const place = [...axes.at];
  if (axes.tiles >= 0) {
    place[axes.tiles] = tile;
  }
  if (axes.rows >= 0) {
    place[axes.rows] = row;
  }
  if (axes.columns >= 0) {
    place[axes.columns] = column;
  }
  return place;
}
