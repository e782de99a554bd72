/** What the Graph view makes of a graph: open calls, folded weights, parts, places, marks. */

import { describe, expect, it } from "vitest";
import type { GraphData, GraphEdge, GraphNode, NodeKind } from "../../shared/graph/messages";
import { streamsOf } from "../../src/graph/streams";
import { arrange, curve } from "../../webview/graph/layout";
import { short, sizeOf, statement, textOf } from "../../webview/graph/measure";
import {
  around,
  folded,
  matches,
  nodeAt,
  type Options,
  picture,
  progress,
  type Shown,
  step,
} from "../../webview/graph/model";

const ALL: Options = { weights: true, most: Number.POSITIVE_INFINITY, focus: null };

function node(id: string, kind: NodeKind, name: string, line: number, more = {}): GraphNode {
  const values = kind === "return" ? [] : [{ name, type: "f32[N]" }];
  const op = kind === "op" || kind === "call" ? "relu" : "";
  return {
    id,
    kind,
    name,
    op,
    lines: [line, line],
    column: 2,
    args: [],
    calls: [],
    values,
    ...more,
  };
}

function edge(from: string, to: string, value: string, place = 0): GraphEdge {
  return { from, to, value, type: "f32[N]", place };
}

function data(graph: string, nodes: GraphNode[], edges: GraphEdge[], inputs: string[]): GraphData {
  const uri = "file:///m.opg";
  return { uri, graph, version: 1, lines: [0, 99], inputs, nodes, edges, graphs: [graph] };
}

const MAIN = data(
  "main",
  [
    node("input:0", "input", "x", 1),
    node("tensor:w", "param", "w", 0),
    node("s0", "op", "h", 2, { args: ["axis=1"] }),
    node("s1", "call", "y", 3, { op: "inner", calls: ["inner"] }),
    node("s2", "return", "y", 4),
  ],
  [
    edge("input:0", "s0", "x"),
    edge("tensor:w", "s0", "w", 1),
    edge("s0", "s1", "h"),
    edge("s1", "s2", "y"),
  ],
  ["x"],
);
const INNER = data(
  "inner",
  [node("input:0", "input", "v", 10), node("s0", "op", "u", 11), node("s1", "return", "u", 12)],
  [edge("input:0", "s0", "v"), edge("s0", "s1", "u")],
  ["v"],
);

const keys = (shown: readonly Shown[]) => shown.map((n) => n.key);

/** A chain of n ops. */
function chain(n: number): GraphData {
  const nodes = [...Array(n).keys()].map((k) => node(`s${k}`, "op", `v${k}`, k));
  const edges = [...Array(n - 1).keys()].map((k) => edge(`s${k}`, `s${k + 1}`, `v${k}`));
  return data("long", nodes, edges, []);
}

describe("calls that are opened in place", () => {
  const open = picture(MAIN, new Map([["s1", INNER]]), ALL);

  it("have the callee's nodes in a frame", () => {
    expect(keys(open.nodes)).toEqual([
      "input:0",
      "tensor:w",
      "s0",
      "s1",
      "s1/input:0",
      "s1/s0",
      "s1/s1",
      "s2",
    ]);
    expect(open.nodes.find((n) => n.key === "s1")?.frame).toBe(true);
    expect(open.nodes.find((n) => n.key === "s1/s0")?.parent).toBe("s1");
  });

  it("take operands at their inputs and give results from their return", () => {
    const ends = open.links.map((l) => [l.from, l.to]);
    expect(ends).toContainEqual(["s0", "s1/input:0"]);
    expect(ends).toContainEqual(["s1/s1", "s2"]);
    expect(ends.flat()).not.toContain("s1");
  });

  it("can be laid out", () => {
    const found = arrange({
      nodes: open.nodes.map((n) => ({
        key: n.key,
        parent: n.parent,
        frame: n.frame,
        width: 80,
        height: 30,
      })),
      wires: open.links.map((l) => ({ key: l.key, from: l.from, to: l.to, width: 0, height: 0 })),
      across: false,
    });
    const frame = found.boxes.s1;
    const inner = found.boxes["s1/s0"];
    expect(frame && inner).toBeTruthy();
    if (frame && inner) {
      expect(Math.abs(inner.x - frame.x) + inner.width / 2).toBeLessThanOrEqual(frame.width / 2);
      expect(Math.abs(inner.y - frame.y) + inner.height / 2).toBeLessThanOrEqual(frame.height / 2);
    }
  });
});

describe("the layout", () => {
  const asked = (across: boolean) => ({
    nodes: chain(5).nodes.map((n) => ({
      key: n.id,
      parent: null,
      frame: false,
      width: 60,
      height: 20,
    })),
    wires: chain(5).edges.map((e, k) => ({
      key: `e${k}`,
      from: e.from,
      to: e.to,
      width: 40,
      height: 14,
    })),
    across,
  });

  it("leads downwards, or to the right", () => {
    const down = arrange(asked(false)).boxes;
    const right = arrange(asked(true)).boxes;
    for (let k = 0; k < 4; k++) {
      expect(down[`s${k + 1}`]?.y).toBeGreaterThan((down[`s${k}`]?.y ?? 0) + 20);
      expect(right[`s${k + 1}`]?.x).toBeGreaterThan((right[`s${k}`]?.x ?? 0) + 60);
    }
  });

  it("lets no two nodes overlap and gives labels a place", () => {
    const found = arrange(asked(false));
    const boxes = Object.values(found.boxes);
    for (const a of boxes) {
      for (const b of boxes) {
        const apart =
          Math.abs(a.x - b.x) >= (a.width + b.width) / 2 ||
          Math.abs(a.y - b.y) >= (a.height + b.height) / 2;
        expect(a === b || apart).toBe(true);
      }
    }
    expect(Object.values(found.routes).every((r) => r.label !== null && r.points.length > 1)).toBe(
      true,
    );
  });

  it("of a large graph is that of its pieces, one below the other", () => {
    const long = chain(1500);
    long.edges.push(edge("s3", "s1400", "v3", 1));
    const found = arrange({
      nodes: long.nodes.map((n) => ({
        key: n.id,
        parent: null,
        frame: false,
        width: 60,
        height: 20,
      })),
      wires: long.edges.map((e, k) => ({
        key: `e${k}`,
        from: e.from,
        to: e.to,
        width: 0,
        height: 0,
      })),
      across: false,
    });
    const ys = long.nodes.map((n) => found.boxes[n.id]?.y ?? Number.NaN);
    expect(ys.every((y, k) => k === 0 || y > (ys[k - 1] ?? 0) + 20)).toBe(true);
    expect(Object.keys(found.routes).length).toBe(long.edges.length);
    for (const { points } of Object.values(found.routes)) {
      expect(points.length).toBeGreaterThan(1);
      expect(
        points.every((p) => p.x >= 0 && p.x <= found.width && p.y >= 0 && p.y <= found.height),
      ).toBe(true);
    }
  });

  it("keeps what is in a frame together, also in a large graph", () => {
    const long = chain(360);
    const last = long.nodes.at(-1)?.id ?? "";
    const inner = chain(150);
    const call = picture(long, new Map([[last, inner]]), ALL);
    const found = arrange({
      nodes: call.nodes.map((n) => ({
        key: n.key,
        parent: n.parent,
        frame: n.frame,
        width: 60,
        height: 20,
      })),
      wires: call.links.map((l) => ({ key: l.key, from: l.from, to: l.to, width: 0, height: 0 })),
      across: true,
    });
    const frame = found.boxes[last];
    for (const { id } of inner.nodes) {
      const box = found.boxes[`${last}/${id}`];
      const off = frame && box ? Math.abs(box.x - frame.x) + box.width / 2 - frame.width / 2 : 1;
      expect(off).toBeLessThanOrEqual(0);
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

describe("what is left out", () => {
  it("are weights, which the ops then name", () => {
    const found = folded(picture(MAIN, new Map(), ALL));
    expect(keys(found.nodes)).not.toContain("tensor:w");
    expect(found.nodes.find((n) => n.key === "s0")?.weights).toEqual(["w"]);
    expect(found.links.every((l) => l.from !== "tensor:w")).toBe(true);
  });

  it("is what is far from the focus in a large graph", () => {
    const whole = picture(chain(1000), new Map(), ALL);
    const part = around(whole, "s500", 21);
    expect(part.nodes.length).toBe(21);
    expect(part.whole).toBe(1000);
    expect(keys(part.nodes)[0]).toBe("s490");
    expect(part.nodes[0]?.hidden).toBe(1);
    expect(part.nodes[10]?.hidden).toBe(0);
    expect(part.links.length).toBe(20);
  });

  it("is nothing where all fit", () => {
    const whole = picture(chain(20), new Map(), ALL);
    expect(around(whole, "s3", 20)).toBe(whole);
  });

  it("is not reached through a weight that many share", () => {
    const shared = chain(200);
    shared.nodes.push(node("tensor:w", "param", "w", 0));
    shared.edges.push(edge("tensor:w", "s10", "w"), edge("tensor:w", "s190", "w"));
    const part = around(picture(shared, new Map(), ALL), "s10", 9);
    expect(keys(part.nodes)).toContain("tensor:w");
    expect(keys(part.nodes)).not.toContain("s190");
  });
});

describe("lines and nodes", () => {
  it("find each other, the innermost first", () => {
    const open = picture(MAIN, new Map([["s1", INNER]]), ALL).nodes;
    expect(nodeAt(open, "file:///m.opg", 11)?.key).toBe("s1/s0");
    expect(nodeAt(open, "file:///m.opg", 2)?.key).toBe("s0");
    expect(nodeAt(open, "file:///other.opg", 2)).toBeUndefined();
    expect(nodeAt(open, "file:///m.opg", 50)).toBeUndefined();
  });

  it("say what has run", () => {
    const shown = picture(MAIN, new Map(), ALL).nodes;
    const standing = {
      uri: "file:///m.opg",
      graph: "main",
      line: 3,
      values: { h: "f32[4]", x: "" },
    };
    const found = Object.fromEntries(shown.map((n) => [n.key, progress(n, standing)]));
    expect(found).toEqual({
      "input:0": "done",
      "tensor:w": "done",
      s0: "done",
      s1: "now",
      s2: "later",
    });
    // Another stream may be ahead, or behind: values tell, not lines.
    const ahead = { ...standing, line: 4, values: {} };
    expect(shown.map((n) => progress(n, ahead))).toEqual(["done", "done", "later", "later", "now"]);
    expect(shown.every((n) => progress(n, { ...standing, graph: "inner" }) === "none")).toBe(true);
  });
});

describe("search", () => {
  it("takes all words, wherever they stand", () => {
    const [, , h] = picture(MAIN, new Map(), ALL).nodes;
    expect(h && matches(h, ["relu", "axis"])).toBe(true);
    expect(h && matches(h, ["f32[n]"])).toBe(true);
    expect(h && matches(h, ["relu", "conv"])).toBe(false);
  });
});

describe("arrow keys", () => {
  const places = [
    { key: "a", x: 0, y: 0 },
    { key: "b", x: -50, y: 100 },
    { key: "c", x: 40, y: 100 },
    { key: "d", x: 40, y: 200 },
  ];
  const links = [
    ["a", "b"],
    ["a", "c"],
    ["c", "d"],
  ].map(([from = "", to = ""]) => ({ key: from + to, from, to, value: "", type: null }));
  const at = (key: string) => places.find((p) => p.key === key) ?? { key, x: 0, y: 0 };

  it("go along the edges and between them", () => {
    expect(step(at("a"), "down", places, links, false)).toBe("c");
    expect(step(at("d"), "up", places, links, false)).toBe("c");
    expect(step(at("b"), "right", places, links, false)).toBe("c");
    expect(step(at("c"), "left", places, links, false)).toBe("b");
    expect(step(at("a"), "up", places, links, false)).toBeUndefined();
  });

  it("turn with the drawing", () => {
    const turned = places.map(({ key, x, y }) => ({ key, x: y, y: x }));
    const a = turned[0] ?? { key: "a", x: 0, y: 0 };
    expect(step(a, "right", turned, links, true)).toBe("c");
  });
});

describe("texts", () => {
  const [, , h] = picture(MAIN, new Map(), ALL).nodes as [Shown, Shown, Shown];

  it("are titles, attributes and types", () => {
    expect(textOf(h, null)).toEqual({ title: "h = relu", detail: "axis=1", types: "f32[N]" });
    expect(statement(h)).toBe("h = relu(axis=1)");
  });

  it("give way to live values without a change of size", () => {
    const live = { h: "f32[4]  mean 0.1  std 1.2  [-3, 4]  3 NaN" };
    expect(textOf(h, live).types).toBe("3 NaN  0.1 ± 1.2");
    const measure = (text: string) => text.length * 7;
    expect(sizeOf(h, measure).width).toBe("-0.0123 ± 0.0456".length * 7 + 28);
  });

  it.each([
    ["f32[8, 8]  mean 0.5  std 2  [-1, 1]", "0.5 ± 2"],
    ["f32[4, 5]  mean -0.05967  std 1.039  [-2.087, 1.62]", "-0.0597 ± 1.04"],
    ["f32[8]  mean 12345.6  std 1.5e+20  [0, 2e+22]", "12346 ± 1.5e+20"],
    ["3", "3"],
    ["i64[2]  [1, 2]", "[1, 2]"],
    ["f32[8]  dropped", "dropped"],
    ["f32[8]", "f32[8]"],
  ])("of %s are short", (text, wanted) => {
    expect(short(text)).toBe(wanted);
  });
});

describe("streams of a plan", () => {
  const PLAN = `plan     main
source   two.opg

frames
  f0  main   -
  f1  block  f0   line 8
  f2  block  f0   line 9

instructions
  run     s0  @0  left = matmul(x, w)     |  b0:v0 b1:v1 -> b2:v2  |  f0 line 6
  record  s0  e0
  run     s1  @1  right = matmul(x, v)    |  b0:v0 b3:v3 -> b4:v4  |  f0 line 7
  run     s1  @2  c = conv2d(x)           |  b4:v4 -> b4:v5        |  f1 line 3
  call    s0  @3  r = while(c)            |  b4:v4 -> b4:v5        |  f2 line 3
  run     s1  @4  q = relu(c)             |  b4:v4 -> b4:v5        |  f2 line 4

plan     other

frames
  f0  other  -

instructions
  run     s0  @0  a = relu(x)             |  b0:v0 -> b2:v2        |  f0 other.opg line 20
`;

  it("are those of its lines; a call has its callee's where that is one", () => {
    expect(streamsOf(PLAN, "main")).toEqual({ 5: 0, 6: 1, 7: 1 });
    expect(streamsOf(PLAN, "block")).toEqual({ 2: 1 });
    expect(streamsOf(PLAN, "other")).toEqual({ 19: 0 });
    expect(streamsOf(PLAN, "nope")).toBeUndefined();
  });
});
