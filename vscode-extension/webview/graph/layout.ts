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
const MANY = 300; // nodes from which on a good drawing takes too long

export function arrange({ nodes, wires, across }: Asked): Arranged {
  const graph = new Graph({ directed: true, multigraph: true, compound: true });
  graph.setGraph({
    rankdir: across ? "LR" : "TB",
    ranker: nodes.length > MANY ? "tight-tree" : "network-simplex",
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
  for (const { key } of nodes) {
    const { x = 0, y = 0, width = 0, height = 0 } = graph.node(key) as Partial<Box>;
    boxes[key] = { x, y, width, height };
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
