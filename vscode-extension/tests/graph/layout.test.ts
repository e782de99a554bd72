/** Where nodes and edges go, and what that costs in a large graph. */

import { describe, expect, it } from "vitest";
import { freeCorner } from "../../webview/graph/corner";
import { crosses, placeLabels } from "../../webview/graph/labels";
import { computeLayout, curve, type SizedNode, type Wire } from "../../webview/graph/layout";
import { dummyBudget, splitByReach } from "../../webview/graph/reach";

function box(key: string, more: Partial<SizedNode> = {}): SizedNode {
  return { key, parent: null, frame: false, width: 60, height: 20, ...more };
}

function wire(from: string, to: string, more: Partial<Wire> = {}): Wire {
  return { key: `${from} ${to}`, from, to, width: 0, height: 0, ...more };
}

/** A chain of n nodes; `parent` is a frame around them. */
function chain(n: number, label = {}, parent: string | null = null) {
  const prefix = parent === null ? "s" : `${parent}/s`;
  const numbers = [...Array(n).keys()];
  return {
    nodes: numbers.map((k) => box(`${prefix}${k}`, { parent })),
    wires: numbers.slice(1).map((k) => wire(`${prefix}${k - 1}`, `${prefix}${k}`, label)),
  };
}

/** A chain whose nodes all read one value besides: each its own distance from it. */
function shared(n: number) {
  const { nodes, wires } = chain(n);
  const readers = nodes.slice(1).map(({ key }) => wire("mask", key));
  return { nodes: [box("mask"), ...nodes], wires: [...wires, ...readers] };
}

const LABEL = { width: 40, height: 14 };

describe("the layout", () => {
  it("leads downwards, or to the right", () => {
    const down = computeLayout({ ...chain(5, LABEL), across: false }).boxes;
    const right = computeLayout({ ...chain(5, LABEL), across: true }).boxes;
    for (let k = 0; k < 4; k++) {
      expect(down[`s${k + 1}`]?.y).toBeGreaterThan((down[`s${k}`]?.y ?? 0) + 20);
      expect(right[`s${k + 1}`]?.x).toBeGreaterThan((right[`s${k}`]?.x ?? 0) + 60);
    }
  });

  it("lets no two nodes overlap and gives labels a place", () => {
    const found = computeLayout({ ...chain(5, LABEL), across: false });
    const boxes = Object.values(found.boxes);
    for (const a of boxes) {
      for (const b of boxes) {
        const apart =
          Math.abs(a.x - b.x) >= (a.width + b.width) / 2 ||
          Math.abs(a.y - b.y) >= (a.height + b.height) / 2;
        expect(a === b || apart).toBe(true);
      }
    }
    const routes = Object.values(found.routes);
    expect(routes.every((r) => r.label !== null && r.points.length > 1)).toBe(true);
  });

  it("puts the nodes of a call into its frame", () => {
    const inner = chain(3, {}, "call");
    const found = computeLayout({
      nodes: [box("x"), box("call", { frame: true, width: 0, height: 0 }), ...inner.nodes],
      wires: [wire("x", "call/s0"), ...inner.wires],
      across: false,
    });
    const frame = found.boxes.call;
    for (const { key } of inner.nodes) {
      const at = found.boxes[key];
      expect(frame && at).toBeTruthy();
      if (frame && at) {
        expect(Math.abs(at.x - frame.x) + at.width / 2).toBeLessThanOrEqual(frame.width / 2);
        expect(Math.abs(at.y - frame.y) + at.height / 2).toBeLessThanOrEqual(frame.height / 2);
      }
    }
  });

  it("draws a line from the first point to the last", () => {
    const path = curve([
      { x: 0, y: 0 },
      { x: 5, y: 10 },
      { x: 0, y: 20 },
    ]);
    expect(path.startsWith("M0.0,0.0") && path.endsWith("L0.0,20.0")).toBe(true);
    expect(curve([{ x: 1, y: 1 }])).toBe("");
  });
});

describe("the layout of a large graph", () => {
  it("is that of its pieces, one below the other", () => {
    const { nodes, wires } = chain(500);
    const found = computeLayout({ nodes, wires: [...wires, wire("s3", "s480")], across: false });
    const ys = nodes.map((n) => found.boxes[n.key]?.y ?? Number.NaN);
    expect(ys.every((y, k) => k === 0 || y > (ys[k - 1] ?? 0) + 20)).toBe(true);
    expect(Object.keys(found.routes).length).toBe(wires.length + 1);
    for (const { points } of Object.values(found.routes)) {
      expect(points.length).toBeGreaterThan(1);
      expect(
        points.every((p) => p.x >= 0 && p.x <= found.width && p.y >= 0 && p.y <= found.height),
      ).toBe(true);
    }
  });

  it("keeps what is in a frame together", () => {
    const outer = chain(359);
    const inner = chain(150, {}, "call");
    const found = computeLayout({
      nodes: [...outer.nodes, box("call", { frame: true }), ...inner.nodes],
      wires: [...outer.wires, wire("s358", "call/s0"), ...inner.wires],
      across: true,
    });
    const frame = found.boxes.call;
    for (const { key } of inner.nodes) {
      const at = found.boxes[key];
      const off = frame && at ? Math.abs(at.x - frame.x) + at.width / 2 - frame.width / 2 : 1;
      expect(off).toBeLessThanOrEqual(0);
    }
  });

  it.each([100, 400, 1600])("has no more dummy nodes than its budget: %i nodes", (n) => {
    const { nodes, wires } = shared(n);
    const { near, far } = splitByReach(nodes, wires);
    const layer = new Map(nodes.map(({ key }, k) => [key, k]));
    const dummies = near.map(({ from, to }) => (layer.get(to) ?? 0) - (layer.get(from) ?? 0) - 1);
    expect(dummies.reduce((a, b) => a + b, 0)).toBeLessThanOrEqual(dummyBudget(n) + n);
    expect(near.length + far.length).toBe(wires.length);
    expect(far.length).toBeGreaterThan(0);
    // What is left out is what reaches farthest.
    expect(far.at(-1)?.to).toBe(`s${n - 1}`);
    expect(near).toEqual(expect.arrayContaining(chain(n).wires));
  });

  it("keeps all edges in their layers where the graph is small, and each part joined", () => {
    const { nodes, wires } = shared(20);
    expect(splitByReach(nodes, wires).far).toEqual([]);
    const [a, b] = [chain(3000), chain(3000, {}, "b")];
    const only = wire("b/s2999", "s2999");
    const split = splitByReach([...a.nodes, ...b.nodes], [...a.wires, ...b.wires, only]);
    expect(split.far).toEqual([]);
  });

  it.each([true, false])("draws edges that reach far beside the layers (across: %s)", (across) => {
    const request = { ...shared(60), across };
    const { far } = splitByReach(request.nodes, request.wires);
    const found = computeLayout(request);
    const side = across ? "y" : "x";
    const edge = Math.max(
      ...Object.values(found.boxes).map((b) => b[side] + (across ? b.height : b.width) / 2),
    );
    expect(far.length).toBeGreaterThan(0);
    for (const { key } of far) {
      const lanes = found.routes[key]?.points.map((p) => p[side]) ?? [];
      expect(Math.max(...lanes)).toBeGreaterThan(edge);
      expect(Math.max(...lanes)).toBeLessThan(across ? found.height : found.width);
    }
  });
});

describe("labels", () => {
  const box = (x: number, y: number) => ({ x, y, width: 20, height: 20 });
  const label = { x: 50, y: 50, width: 30, height: 14 };
  const down = (x: number) => [
    { x, y: 0 },
    { x, y: 50 },
    { x, y: 100 },
  ];

  it("stand on their own line and on no other line, node or label", () => {
    const across = [
      { x: 0, y: 50 },
      { x: 100, y: 50 },
    ];
    const drawn = {
      boxes: { a: box(50, 60) },
      routes: {
        own: { points: down(50), label: { ...label } },
        other: { points: across, label: null },
        same: { points: down(60), label: { ...label } },
      },
      width: 100,
      height: 100,
    };
    placeLabels(drawn, ["a"]);
    const { own, other, same } = drawn.routes;
    for (const at of [own.label, same.label]) {
      expect(at === null || !crosses(other.points, at)).toBe(true);
    }
    expect(own.label === null || !crosses(same.points, own.label)).toBe(true);
  });

  it("go where there is no free place", () => {
    const routes = Object.fromEntries(
      [45, 50, 55].map((x) => [String(x), { points: down(x), label: { ...label } }]),
    );
    placeLabels({ boxes: {}, routes, width: 100, height: 100 }, []);
    expect(Object.values(routes).map((route) => route.label)).toEqual([null, null, null]);
  });

  it("of a split are kept in a real layout, each clear of the other edges", () => {
    const nodes = ["x", "s", "a", "b", "c", "end"].map((key) => ({
      key,
      parent: null,
      frame: false,
      width: 60,
      height: 20,
    }));
    const named = (from: string, to: string, width = 0) => ({
      key: `${from} ${to}`,
      from,
      to,
      width,
      height: width && 14,
    });
    const split = ["a", "b", "c"].map((to) => named("s", to, 40));
    const ends = ["a", "b", "c"].map((from) => named(from, "end"));
    const wires = [named("x", "s"), ...split, ...ends, named("x", "end")];
    const found = computeLayout({ nodes, wires, across: false });
    for (const { key } of split) {
      const at = found.routes[key]?.label;
      expect(at).toBeTruthy();
      for (const [other, { points }] of Object.entries(found.routes)) {
        expect(other === key || !at || !crosses(points, at)).toBe(true);
      }
    }
  });
});

it("puts the small picture where it covers least, never on the buttons", () => {
  const corner = (...boxes: [number, number][]) =>
    freeCorner(
      boxes.map(([x, y]) => ({ x, y, width: 100, height: 40 })),
      { width: 400, height: 300 },
      { width: 120, height: 90 },
    );
  expect(corner([200, 20])).toBe("bottom right");
  expect(corner([350, 280])).toBe("top right");
  expect(corner([350, 280], [350, 30])).toBe("top left");
  expect(corner([350, 280], [350, 30], [50, 30], [50, 80])).toBe("bottom right");
});
