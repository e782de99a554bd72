/** From the data of graphs to what is drawn: calls expanded in place, weights folded, a part of a large graph. */

import { purpose, sameCall } from "../../shared/frames";
import type { GraphData, GraphEdge, GraphNode, StopState } from "../../shared/graph/messages";
import { groupBy } from "./groups";

/** A node of the picture. Keys are paths: `s3/s1` is statement 1 in the call that statement 3 is. */
export interface PictureNode {
  key: string;
  /** The expanded call around it. */
  parent: string | null;
  uri: string;
  graph: string;
  node: GraphNode;
  /** An expanded call: a frame around the nodes of its graph. */
  frame: boolean;
  /** Params and states that are written in the node and not drawn beside it, in the order of its operands. */
  weights: Weight[];
  /** What the open calls around it are for, the outermost first. */
  calls: string[];
  /** How many neighbours the part that is shown leaves out. */
  hidden: number;
}

export interface Weight {
  name: string;
  type: string | null;
  kind: "param" | "state";
  uri: string;
  line: number;
  column: number;
}

export interface Link {
  key: string;
  from: string;
  to: string;
  value: string;
  type: string | null;
}

export interface Picture {
  nodes: PictureNode[];
  links: Link[];
  /** How many nodes there would be without a limit, and which. */
  whole: number;
  all: readonly PictureNode[];
}

export interface Options {
  /** Params and states as nodes of their own. */
  weights: boolean;
  /** At most so many nodes; of more, those around `focus`. */
  most: number;
  focus: string | null;
}

const TENSORS = new Set(["param", "state"]);

/** Everything that is to be drawn. `expanded` has the graphs of calls that are open, by key. */
export function picture(
  data: GraphData,
  expanded: ReadonlyMap<string, GraphData>,
  options: Options,
): Picture {
  const nodes: PictureNode[] = [];
  const links: Link[] = [];
  collect(data, { key: "", calls: [] }, expanded, nodes, links);
  const all = { nodes, links, whole: nodes.length, all: nodes };
  return neighbourhood(options.weights ? all : foldWeights(all), options.focus, options.most);
}

function collect(
  data: GraphData,
  around: { key: string; calls: string[] },
  expanded: ReadonlyMap<string, GraphData>,
  nodes: PictureNode[],
  links: Link[],
): void {
  const open = new Map<string, GraphData>();
  const prefix = around.key === "" ? "" : `${around.key}/`;
  for (const node of data.nodes) {
    const key = prefix + node.id;
    const inside = expanded.get(key);
    nodes.push({
      key,
      parent: around.key || null,
      uri: node.uri || data.uri,
      graph: data.graph,
      node,
      frame: inside !== undefined,
      weights: [],
      calls: around.calls,
      hidden: 0,
    });
    if (inside !== undefined) {
      open.set(node.id, inside);
      const calls = [...around.calls, purpose(node)];
      collect(inside, { key, calls }, expanded, nodes, links);
    }
  }
  data.edges.forEach((edge, k) => {
    const from = source(edge, prefix, open, data);
    const to = target(edge, prefix, open);
    if (from !== null && to !== null) {
      links.push({ key: `${prefix}e${k}`, from, to, value: edge.value, type: edge.type });
    }
  });
}

/** The nodes of a graph as they are before anything is opened or left out. */
export function allNodes(data: GraphData): PictureNode[] {
  return picture(data, new Map(), { weights: true, most: Infinity, focus: null }).nodes;
}

/** A node and the open calls around it, the outermost first. */
export function ancestors(shown: PictureNode, nodes: readonly PictureNode[]): PictureNode[] {
  const around = nodes.find((n) => n.key === shown.parent);
  return around === undefined ? [shown] : [...ancestors(around, nodes), shown];
}

/** Where an edge begins: of an open call, at what its graph returns. */
function source(
  edge: GraphEdge,
  prefix: string,
  open: ReadonlyMap<string, GraphData>,
  data: GraphData,
): string | null {
  const inside = open.get(edge.from);
  const key = prefix + edge.from;
  if (inside === undefined) {
    return key;
  }
  const returned = inside.nodes.find((node) => node.kind === "return");
  const call = data.nodes.find((node) => node.id === edge.from);
  if (returned === undefined || call === undefined) {
    return null;
  }
  return `${key}/${returned.id}`;
}

/** Where an edge ends: of an open call, at the input that takes the operand. */
function target(
  edge: GraphEdge,
  prefix: string,
  open: ReadonlyMap<string, GraphData>,
): string | null {
  const inside = open.get(edge.to);
  const key = prefix + edge.to;
  if (inside === undefined) {
    return key;
  }
  return edge.place < inside.inputs.length ? `${key}/input:${edge.place}` : null;
}

/**
 * Params and states written in the nodes that read them, also through the inputs of open calls: those
 * that hand on nothing else are gone as well.
 */
export function foldWeights(whole: Picture): Picture {
  const folded = new Map<string, Weight[]>();
  for (const shown of whole.nodes) {
    const weight = weightOf(shown);
    if (weight !== undefined) {
      folded.set(shown.key, [weight]);
    }
  }
  const incoming = groupBy(whole.links, (link) => link.to);
  for (const { key, parent, node } of whole.nodes) {
    const sources = incoming.get(key) ?? [];
    const handed = sources.flatMap(({ from }) => folded.get(from) ?? []);
    if (parent !== null && node.kind === "input" && handed.length === 1 && sources.length === 1) {
      folded.set(key, handed);
    }
  }
  const nodes = whole.nodes
    .filter((n) => !folded.has(n.key))
    .map((n) => ({
      ...n,
      weights: (incoming.get(n.key) ?? []).flatMap(({ from }) => folded.get(from) ?? []),
    }));
  const links = whole.links.filter(({ from, to }) => !folded.has(from) && !folded.has(to));
  return { nodes, links, whole: nodes.length, all: nodes };
}

function weightOf({ node, uri }: PictureNode): Weight | undefined {
  const { kind, name, values, lines, column } = node;
  return kind === "param" || kind === "state"
    ? { name, type: values[0]?.type ?? null, kind, uri, line: lines[0], column }
    : undefined;
}

/**
 * The part of a picture around a node, by the number of edges between: at most `most` nodes. From
 * a weight one does not go on: those that are shared would bring in what is far away.
 */
export function neighbourhood(whole: Picture, focus: string | null, most: number): Picture {
  if (whole.nodes.length <= most) {
    return whole;
  }
  const beside = neighbours(whole.links);
  const byKey = new Map(whole.nodes.map((n) => [n.key, n]));
  const first = whole.nodes.find((n) => n.key === focus) ?? whole.nodes[0];
  if (first === undefined) {
    return whole;
  }
  const included = new Set<string>([first.key]);
  const queue = [first.key];
  for (let at = 0; at < queue.length && included.size < most; at++) {
    const here = queue[at] as string;
    const node = byKey.get(here);
    if (at > 0 && node !== undefined && TENSORS.has(node.node.kind)) {
      continue;
    }
    for (const next of beside.get(here) ?? []) {
      if (included.size < most && !included.has(next)) {
        included.add(next);
        queue.push(next);
      }
    }
  }
  // What stands in a frame is shown in its frame.
  for (const key of [...included]) {
    for (let up = byKey.get(key)?.parent; up; up = byKey.get(up)?.parent) {
      included.add(up);
    }
  }
  const nodes = whole.nodes
    .filter((n) => included.has(n.key))
    .map((n) => ({
      ...n,
      hidden: (beside.get(n.key) ?? []).filter((other) => !included.has(other)).length,
    }));
  const links = whole.links.filter((l) => included.has(l.from) && included.has(l.to));
  return { nodes, links, whole: whole.nodes.length, all: whole.nodes };
}

function neighbours(links: readonly Link[]): Map<string, string[]> {
  const pairs = links.flatMap(({ from, to }) => [
    [from, to],
    [to, from],
  ]);
  const grouped = groupBy(pairs, ([key = ""]) => key);
  return new Map([...grouped].map(([key, found]) => [key, found.map(([, other = ""]) => other)]));
}

/** The node of a line: the innermost where a call is open there. */
export function nodeAt(
  nodes: readonly PictureNode[],
  uri: string,
  line: number,
): PictureNode | undefined {
  let found: PictureNode | undefined;
  for (const shown of nodes) {
    const [first, last] = shown.node.lines;
    if (shown.uri !== uri || line < first || line > last) {
      continue;
    }
    const size = last - first;
    const best = found === undefined ? Infinity : found.node.lines[1] - found.node.lines[0];
    // Inputs may share a line: the first one stands for it.
    if (size < best) {
      found = shown;
    }
  }
  return found;
}

export type Progress = "done" | "now" | "later" | "none";

/** Whether a run stands in the call that a node is part of. `calls` lead to the graph that is shown. */
export function standsIn(shown: PictureNode, stop: StopState, calls: readonly string[]): boolean {
  const there = shown.uri === stop.uri && shown.graph === stop.graph;
  return there && sameCall([...calls, ...shown.calls], stop.calls);
}

/** What the run has made of a node: by its results where it has some, else by its place. */
export function progress(
  shown: PictureNode,
  stop: StopState | null,
  calls: readonly string[],
): Progress {
  if (stop !== null && shown.node.now !== undefined) {
    return shown.node.now ? "now" : "done"; // all that is drawn of a script has run
  }
  if (stop === null || !standsIn(shown, stop, calls)) {
    return "none";
  }
  const [first, last] = shown.node.lines;
  if (TENSORS.has(shown.node.kind) || shown.node.kind === "input") {
    return "done";
  }
  if (first <= stop.line && stop.line <= last) {
    return "now";
  }
  const results = shown.node.values;
  if (results.length > 0) {
    return results.every((value) => value.name in stop.values) ? "done" : "later";
  }
  return last < stop.line ? "done" : "later";
}

/** Whether a search finds a node: all its words, in any of what is written in it. */
export function matches(shown: PictureNode, terms: readonly string[]): boolean {
  const { name, op, args, kind, values, calls } = shown.node;
  const types = [...values, ...shown.weights].map((v) => v.type);
  const text = [name, op, kind, ...args, ...calls, ...shown.weights.map((w) => w.name), ...types]
    .join(" ")
    .toLowerCase();
  return terms.every((word) => text.includes(word));
}

export type Direction = "up" | "down" | "left" | "right";

interface PlacedNode {
  key: string;
  x: number;
  y: number;
}

/**
 * Where an arrow key leads: along the edges with the flow or against it, and beside it to the
 * nearest node of about the same height. `across`: the flow goes from left to right.
 */
export function nodeInDirection(
  from: PlacedNode,
  direction: Direction,
  nodes: readonly PlacedNode[],
  links: readonly Link[],
  across: boolean,
): string | undefined {
  const flow: Record<Direction, "next" | "previous" | "before" | "behind"> = across
    ? { right: "next", left: "previous", up: "before", down: "behind" }
    : { down: "next", up: "previous", left: "before", right: "behind" };
  const way = flow[direction];
  const byKey = new Map(nodes.map((n) => [n.key, n]));
  const distance = (n: PlacedNode) => Math.hypot(n.x - from.x, n.y - from.y);
  let found: PlacedNode[];
  if (way === "next" || way === "previous") {
    found = links
      .filter((l) => (way === "next" ? l.from : l.to) === from.key)
      .map((l) => byKey.get(way === "next" ? l.to : l.from))
      .filter((n) => n !== undefined);
  } else {
    const along = (n: PlacedNode) => (across ? n.y - from.y : n.x - from.x);
    const off = (n: PlacedNode) => Math.abs(across ? n.x - from.x : n.y - from.y);
    const sign = way === "before" ? -1 : 1;
    found = nodes.filter((n) => along(n) * sign > 1 && off(n) <= Math.abs(along(n)));
  }
  return found.sort((a, b) => distance(a) - distance(b))[0]?.key;
}
