/** Where the nodes of a picture go: a layered drawing by dagre. */

import { Graph, layout } from "@dagrejs/dagre";
import { groupBy } from "./groups";
import { placeLabels } from "./labels";
import { splitByReach } from "./reach";

export interface SizedNode {
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

export interface LayoutRequest {
  nodes: SizedNode[];
  wires: Wire[];
  /** Lay out left to right instead of top to bottom. */
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

/** Boxes have their middle at `x`, `y`; a route is the points of an edge, with its label. */
export interface Layout {
  boxes: Record<string, Box>;
  routes: Record<string, { points: Point[]; label: Box | null }>;
  width: number;
  height: number;
}

const MARGIN = 24;
const PIECE = 360; // nodes that are laid out at once: dagre is slow beyond, and recurses too deep
const TITLE = 14; // height of a frame's title, beyond the room that dagre leaves
const GAP = 60; // between two pieces
const BEND = 20; // within which an edge turns aside
const LANE = 12; // between edges that lead past the layers

/**
 * The layout of a picture. A large one is cut into pieces in the order of its nodes, which is that
 * of the program: data only flows from a piece to later ones, which stand below it.
 */
export function computeLayout(request: LayoutRequest): Layout {
  const pieces = cut(request.nodes);
  const drawn = pieces.length <= 1 ? layoutPiece(request) : stacked(request, pieces);
  const leaves = request.nodes.filter((node) => !node.frame).map((node) => node.key);
  placeLabels(drawn, leaves);
  return drawn;
}

/** Groups of consecutive nodes; what stands in a frame stays with it. */
function cut(nodes: readonly SizedNode[]): SizedNode[][] {
  const pieces: SizedNode[][] = [];
  const outermost = new Map<string, SizedNode[]>();
  let last: SizedNode[] = [];
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

function stacked({ wires, across }: LayoutRequest, pieces: readonly SizedNode[][]): Layout {
  const pieceOf = new Map(pieces.flatMap((nodes, k) => nodes.map(({ key }) => [key, k] as const)));
  const inside = pieces.map(() => [] as Wire[]);
  const between: Wire[] = [];
  for (const wire of wires) {
    const piece = pieceOf.get(wire.from);
    if (piece !== undefined && piece === pieceOf.get(wire.to)) {
      inside[piece]?.push(wire);
    } else {
      between.push(wire);
    }
  }
  const incoming = groupBy(between, (wire) => pieceOf.get(wire.to));
  const whole: Layout = { boxes: {}, routes: {}, width: 0, height: 0 };
  let along = 0; // how far the pieces so far reach
  let [least, most] = [0, 0];
  pieces.forEach((nodes, k) => {
    const part = layoutPiece({ nodes, wires: inside[k] ?? [], across });
    const shift = meanShift(part, incoming.get(k) ?? [], whole, across);
    move(part, across ? { x: along, y: shift } : { x: shift, y: along });
    Object.assign(whole.boxes, part.boxes);
    Object.assign(whole.routes, part.routes);
    along += (across ? part.width : part.height) + GAP - 2 * MARGIN;
    least = Math.min(least, shift);
    most = Math.max(most, shift + (across ? part.height : part.width));
  });
  for (const { key, from, to } of between) {
    const [a, b] = [whole.boxes[from], whole.boxes[to]];
    if (a !== undefined && b !== undefined) {
      whole.routes[key] = { points: bridge(a, b, across), label: null };
    }
  }
  move(whole, across ? { x: 0, y: -least } : { x: -least, y: 0 });
  const end = along - GAP + 2 * MARGIN;
  [whole.width, whole.height] = across ? [end, most - least] : [most - least, end];
  return whole;
}

/** By how much a piece is moved aside, so that edges from earlier ones lead straight into it. */
function meanShift(
  part: Layout,
  incoming: readonly Wire[],
  whole: Layout,
  across: boolean,
): number {
  let [sum, count] = [0, 0];
  for (const { from, to } of incoming) {
    const [a, b] = [whole.boxes[from], part.boxes[to]];
    if (a !== undefined && b !== undefined) {
      sum += across ? a.y - b.y : a.x - b.x;
      count += 1;
    }
  }
  return count === 0 ? 0 : sum / count;
}

/** From the end of a box to the beginning of another one; past what is between in a lane beside it. */
function bridge(a: Box, b: Box, across: boolean, lane?: number): Point[] {
  const [start, end] = across
    ? [
        { x: a.x + a.width / 2, y: a.y },
        { x: b.x - b.width / 2, y: b.y },
      ]
    : [
        { x: a.x, y: a.y + a.height / 2 },
        { x: b.x, y: b.y - b.height / 2 },
      ];
  const after = (p: Point, by: number) => (across ? { ...p, x: p.x + by } : { ...p, y: p.y + by });
  const aside = (p: Point) => (across ? { ...p, y: lane ?? p.y } : { ...p, x: lane ?? p.x });
  const [leave, arrive] = [after(start, BEND), after(end, -BEND)];
  return lane === undefined
    ? [start, leave, arrive, end]
    : [start, leave, aside(leave), aside(arrive), arrive, end];
}

function move({ boxes, routes }: Layout, by: Point): void {
  const points = Object.values(routes).flatMap((r) => [...r.points, ...(r.label ? [r.label] : [])]);
  for (const each of new Set([...Object.values(boxes), ...points])) {
    each.x += by.x;
    each.y += by.y;
  }
}

function layoutPiece({ nodes, wires, across }: LayoutRequest): Layout {
  const { near, far } = splitByReach(nodes, wires);
  const graph = layeredGraph({ nodes, wires: near, across });
  layout(graph);
  const { width = 0, height = 0 } = graph.graph() as { width?: number; height?: number };
  const drawn: Layout = { boxes: {}, routes: {}, width, height };
  for (const { key, frame } of nodes) {
    const { x = 0, y = 0, width = 0, height = 0 } = graph.node(key) as Partial<Box>;
    // A frame has its title above what is in it.
    const more = frame ? TITLE : 0;
    drawn.boxes[key] = { x, y: y - more / 2, width, height: height + more };
  }
  for (const { key, from, to, width, height } of near) {
    const edge = graph.edge(from, to, key) as Partial<Point> & { points?: Point[] };
    const { x, y } = edge;
    const placed = width > 0 && x !== undefined && y !== undefined;
    const label = placed ? { x, y, width, height } : null;
    drawn.routes[key] = { points: edge.points ?? [], label };
  }
  addLanes(drawn, far, across);
  return drawn;
}

function layeredGraph({ nodes, wires, across }: LayoutRequest): Graph {
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
  return graph;
}

/** Draws edges that reach far beside the layers: those of one value share a lane. */
function addLanes(drawn: Layout, far: readonly Wire[], across: boolean): void {
  const side = across ? "height" : "width";
  for (const [from, readers] of groupBy(far, (wire) => wire.from)) {
    const lane = drawn[side] - MARGIN + LANE;
    for (const { key, to } of readers) {
      const [a, b] = [drawn.boxes[from], drawn.boxes[to]];
      if (a !== undefined && b !== undefined) {
        drawn.routes[key] = { points: bridge(a, b, across, lane), label: null };
      }
    }
    drawn[side] += LANE;
  }
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
