/**
 * Which edges a layered drawing routes itself. It puts a dummy node into each layer that an edge
 * crosses, so one value that is read all over a long graph costs layers times readers: quadratic.
 * Edges beyond a budget that is linear in the nodes are left to be drawn beside the layers.
 */

import { groupBy } from "./groups";
import type { SizedNode, Wire } from "./layout";

/** Dummy nodes that a drawing of `nodes` nodes may have. */
export function dummyBudget(nodes: number): number {
  return 500 + 4 * nodes;
}

/** Shortest edges first, as far as the budget goes, and those without which a part would float. */
export function splitByReach(
  nodes: readonly SizedNode[],
  wires: readonly Wire[],
): { near: Wire[]; far: Wire[] } {
  const layers = layersOf(nodes, wires);
  const dummies = (wire: Wire) =>
    Math.max(0, (layers.get(wire.to) ?? 0) - (layers.get(wire.from) ?? 0) - 1);
  const joined = new Components();
  const near: Wire[] = [];
  const far: Wire[] = [];
  let left = dummyBudget(nodes.length);
  for (const wire of wires.toSorted((a, b) => dummies(a) - dummies(b))) {
    const cost = dummies(wire);
    if (joined.join(wire.from, wire.to) || cost <= left) {
      left -= cost;
      near.push(wire);
    } else {
      far.push(wire);
    }
  }
  return { near, far };
}

/** By key: the length of the longest path to a node; of one without operands, just above its first reader. */
function layersOf(nodes: readonly SizedNode[], wires: readonly Wire[]): Map<string, number> {
  const readers = groupBy(wires, (wire) => wire.from);
  const operands = groupBy(wires, (wire) => wire.to);
  const pending = new Map([...operands].map(([key, found]) => [key, found.length]));
  const layers = new Map<string, number>();
  const sources = nodes.map((node) => node.key).filter((key) => !operands.has(key));
  const queue = [...sources];
  for (const key of queue) {
    layers.set(key, 1 + Math.max(-1, ...operandLayers(operands.get(key), layers)));
    for (const { to } of readers.get(key) ?? []) {
      const open = (pending.get(to) ?? 0) - 1;
      pending.set(to, open);
      if (open === 0) {
        queue.push(to);
      }
    }
  }
  for (const key of sources) {
    const first = Math.min(...(readers.get(key) ?? []).map(({ to }) => layers.get(to) ?? 0));
    layers.set(key, Number.isFinite(first) ? first - 1 : 0);
  }
  return layers;
}

function operandLayers(wires: readonly Wire[] | undefined, layers: Map<string, number>): number[] {
  return (wires ?? []).map((wire) => layers.get(wire.from) ?? 0);
}

/** Sets of nodes that edges connect. */
class Components {
  private readonly parents = new Map<string, string>();

  /** Whether the two were apart. */
  join(a: string, b: string): boolean {
    const [from, to] = [this.root(a), this.root(b)];
    this.parents.set(from, to);
    return from !== to;
  }

  private root(key: string): string {
    let root = key;
    for (let up = this.parents.get(root); up !== undefined && up !== root; ) {
      root = up;
      up = this.parents.get(root);
    }
    this.parents.set(key, root);
    return root;
  }
}
