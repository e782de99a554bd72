/** Where labels of edges go: on their own line, and on nothing else. */

import type { Box, Layout, Point } from "./layout";

const PLACES = [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8]; // along the line

/** Moves each label to a free place on its line; where there is none it goes, as the tooltip has it too. */
export function placeLabels({ boxes, routes }: Layout, nodes: readonly string[]): void {
  const lines = Object.entries(routes).map(([key, { points }]) => ({ key, line: flat(points) }));
  const taken = nodes.flatMap((key) => boxes[key] ?? []);
  for (const { key, line } of lines) {
    const route = routes[key];
    if (!route?.label) {
      continue;
    }
    const { width, height } = route.label;
    const others = lines.filter((other) => other.key !== key);
    const free = PLACES.map((part) => ({ ...along(line, part), width, height })).find(
      (at) =>
        !taken.some((box) => overlap(at, box)) && !others.some((other) => crosses(other.line, at)),
    );
    route.label = free ?? null;
    if (free !== undefined) {
      taken.push(free);
    }
  }
}

/** The points of a route as `curve` draws it. */
function flat(points: readonly Point[]): Point[] {
  const [first, ...rest] = points;
  const last = rest.at(-1);
  if (first === undefined || last === undefined) {
    return [];
  }
  const line = [first];
  for (let k = 0; k + 1 < rest.length; k++) {
    const [from, bend, to] = [line.at(-1), rest[k], rest[k + 1]] as [Point, Point, Point];
    const end = middle(bend, to);
    line.push(middle(middle(from, bend), middle(bend, end)), end);
  }
  return [...line, last];
}

function middle(a: Point, b: Point): Point {
  return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
}

/** The point at a part of a line's length. */
function along(line: readonly Point[], part: number): Point {
  const steps = line.slice(1).map((to, k) => ({ from: line[k] as Point, to }));
  const lengths = steps.map(({ from, to }) => Math.hypot(to.x - from.x, to.y - from.y));
  let left = part * lengths.reduce((sum, length) => sum + length, 0);
  for (const [k, { from, to }] of steps.entries()) {
    const length = lengths[k] ?? 0;
    if (left <= length && length > 0) {
      const share = left / length;
      return { x: from.x + (to.x - from.x) * share, y: from.y + (to.y - from.y) * share };
    }
    left -= length;
  }
  return line.at(-1) ?? { x: 0, y: 0 };
}

function overlap(a: Box, b: Box): boolean {
  const [x, y] = [Math.abs(a.x - b.x), Math.abs(a.y - b.y)];
  return x < (a.width + b.width) / 2 && y < (a.height + b.height) / 2;
}

/** Whether a line leads through a box. */
export function crosses(line: readonly Point[], box: Box): boolean {
  return line.slice(1).some((to, k) => cuts(line[k] as Point, to, box));
}

/** Liang and Barsky's test: what of a segment is left between the sides of a box. */
function cuts(from: Point, to: Point, { x, y, width, height }: Box): boolean {
  let [enter, leave] = [0, 1];
  const sides = [
    [from.x - to.x, from.x - (x - width / 2)],
    [to.x - from.x, x + width / 2 - from.x],
    [from.y - to.y, from.y - (y - height / 2)],
    [to.y - from.y, y + height / 2 - from.y],
  ] as const;
  for (const [slope, room] of sides) {
    if (slope === 0 && room < 0) {
      return false;
    }
    if (slope < 0) {
      enter = Math.max(enter, room / slope);
    } else if (slope > 0) {
      leave = Math.min(leave, room / slope);
    }
  }
  return enter < leave;
}
