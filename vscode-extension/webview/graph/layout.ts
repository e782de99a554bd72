/** Where the nodes of a picture go: a layered drawing by dagre. */

import { Graph, layout } from "@dagrejs/dagre";

export interface Sized {
  key: string;
  width: number;
  height: number;
  parent: string | null;
  frame: boolean;
}

export interface Wire {
  key: string;
  from: string;
  to: string;
  /** The size of its label; 0 where it has none. */
  width: number;
  height: number;
}

export interface Asked {
  nodes: Sized[];
  wires: Wire[];
  /** From left to right instead of from top to bottom. */
  across: boolean;
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Point {
  x: number;
  y: number;
}

/** Boxes have their middle at `x`, `y`; a route is the points of an edge, with its label's middle. */
export interface Arranged {
  boxes: Record<string, Box>;
  routes: Record<string, { points: Point[]; label: Point | null }>;
  width: number;
  height: number;
}

const MARGIN = 24;
const PIECE = 360; // nodes that are laid out at once: dagre is slow beyond, and recurses too deep
const TITLE = 14; // height of a frame's title, beyond the room that dagre leaves
const GAP = 60; // between two pieces

/**
 * The layout of a picture. A large one is cut into pieces in the order of its nodes, which is that
 * of the program: data only flows from a piece to later ones, which stand below it.
 */
export function arrange(asked: Asked): Arranged {
  const pieces = cut(asked.nodes);
  return pieces.length <= 1 ? piece(asked) : stacked(asked, pieces);
}

/** Groups of consecutive nodes; what stands in a frame stays with it. */
function cut(nodes: readonly Sized[]): Sized[][] {
  const pieces: Sized[][] = [];
  const outermost = new Map<string, Sized[]>();
  let last: Sized[] = [];
  for (const node of nodes) {
    let place = node.parent === null ? undefined : outermost.get(node.parent);
    if (place === undefined) {
      if (last.length >= PIECE || pieces.length === 0) {
        last = [];
        pieces.push(last);
      }
      place = last;
    }
    place.push(node);
    outermost.set(node.key, place);
  }
  return nodes.length <= PIECE + PIECE / 4 ? [pieces.flat()] : pieces;
}

function stacked({ wires, across }: Asked, pieces: readonly Sized[][]): Arranged {
  const within = new Map<string, number>();
  pieces.forEach((nodes, k) => {
    for (const { key } of nodes) {
      within.set(key, k);
    }
  });
  const found: Arranged = { boxes: {}, routes: {}, width: 0, height: 0 };
  const inside = pieces.map(() => [] as Wire[]);
  const between: Wire[] = [];
  for (const wire of wires) {
    const at = within.get(wire.from);
    if (at !== undefined && at === within.get(wire.to)) {
      inside[at]?.push(wire);
    } else {
      between.push(wire);
    }
  }
  let along = 0; // how far the pieces so far reach
  let [least, most] = [0, 0];
  pieces.forEach((nodes, k) => {
    const part = piece({ nodes, wires: inside[k] ?? [], across });
    const shift = shifted(part, between, found, across);
    const by = across ? { x: along, y: shift } : { x: shift, y: along };
    for (const [key, box] of Object.entries(part.boxes)) {
      found.boxes[key] = { ...box, x: box.x + by.x, y: box.y + by.y };
    }
    for (const [key, { points, label }] of Object.entries(part.routes)) {
      const moved = (p: Point) => ({ x: p.x + by.x, y: p.y + by.y });
      found.routes[key] = { points: points.map(moved), label: label && moved(label) };
    }
    along += (across ? part.width : part.height) + GAP - 2 * MARGIN;
    least = Math.min(least, shift);
    most = Math.max(most, shift + (across ? part.height : part.width));
  });
  for (const { key, from, to } of between) {
    const [a, b] = [found.boxes[from], found.boxes[to]];
    if (a !== undefined && b !== undefined) {
      found.routes[key] = { points: bridge(a, b, across), label: null };
    }
  }
  move(found, across ? { x: 0, y: -least } : { x: -least, y: 0 });
  const end = along - GAP + 2 * MARGIN;
  [found.width, found.height] = across ? [end, most - least] : [most - least, end];
  return found;
}

/** By how much a piece is moved aside, so that edges from earlier ones lead straight into it. */
function shifted(
  part: Arranged,
  between: readonly Wire[],
  found: Arranged,
  across: boolean,
): number {
  let [sum, count] = [0, 0];
  for (const { from, to } of between) {
    const [a, b] = [found.boxes[from], part.boxes[to]];
    if (a !== undefined && b !== undefined) {
      sum += across ? a.y - b.y : a.x - b.x;
      count += 1;
    }
  }
  return count === 0 ? 0 : sum / count;
}

/** From the end of a box to the beginning of another one. */
function bridge(a: Box, b: Box, across: boolean): Point[] {
  const [start, end] = across
    ? [
        { x: a.x + a.width / 2, y: a.y },
        { x: b.x - b.width / 2, y: b.y },
      ]
    : [
        { x: a.x, y: a.y + a.height / 2 },
        { x: b.x, y: b.y - b.height / 2 },
      ];
  const bend = GAP / 3;
  return across
    ? [start, { x: start.x + bend, y: start.y }, { x: end.x - bend, y: end.y }, end]
    : [start, { x: start.x, y: start.y + bend }, { x: end.x, y: end.y - bend }, end];
}

function move({ boxes, routes }: Arranged, by: Point): void {
  const points = Object.values(routes).flatMap((r) => [...r.points, ...(r.label ? [r.label] : [])]);
  for (const each of new Set([...Object.values(boxes), ...points])) {
    each.x += by.x;
    each.y += by.y;
  }
}

function piece({ nodes, wires, across }: Asked): Arranged {
  const graph = new Graph({ directed: true, multigraph: true, compound: true });
  graph.setGraph({
    rankdir: across ? "LR" : "TB",
    nodesep: 26,
    edgesep: 14,
    ranksep: 34,
    marginx: MARGIN,
    marginy: MARGIN,
  });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const { key, width, height } of nodes) {
    graph.setNode(key, { width, height });
  }
  for (const { key, parent } of nodes) {
    if (parent !== null) {
      graph.setParent(key, parent);
    }
  }
  for (const { key, from, to, width, height } of wires) {
    graph.setEdge(from, to, { width, height, labelpos: "c" }, key);
  }
  layout(graph);
  const boxes: Record<string, Box> = {};
  for (const { key, frame } of nodes) {
    const { x = 0, y = 0, width = 0, height = 0 } = graph.node(key) as Partial<Box>;
    // A frame has its title above what is in it.
    const more = frame ? TITLE : 0;
    boxes[key] = { x, y: y - more / 2, width, height: height + more };
  }
  const routes: Arranged["routes"] = {};
  for (const { key, from, to, width } of wires) {
    const edge = graph.edge(from, to, key) as Partial<Point> & { points?: Point[] };
    const { x, y } = edge;
    const label = width > 0 && x !== undefined && y !== undefined ? { x, y } : null;
    routes[key] = { points: edge.points ?? [], label };
  }
  const { width = 0, height = 0 } = graph.graph() as { width?: number; height?: number };
  return { boxes, routes, width, height };
}

/** A smooth line through the points of a route, for the `d` of an SVG path. */
export function curve(points: readonly Point[]): string {
  const [first, ...rest] = points;
  const last = rest.at(-1);
  if (first === undefined || last === undefined) {
    return "";
  }
  const at = (p: Point) => `${p.x.toFixed(1)},${p.y.toFixed(1)}`;
  let path = `M${at(first)}`;
  for (let k = 0; k + 1 < rest.length; k++) {
    const a = rest[k] as Point;
    const b = rest[k + 1] as Point;
    path += `Q${at(a)} ${at({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 })}`;
  }
  return `${path}L${at(last)}`;
}
