/** What the Graph view makes of a graph: open calls, folded weights, parts, places, marks. */

import { describe, expect, it } from "vitest";
import type { GraphData, GraphEdge, GraphNode, NodeKind } from "../../shared/graph/messages";
import { sizeOf, statement, summarize, textOf } from "../../webview/graph/measure";
import {
  foldWeights,
  matches,
  neighbourhood,
  nodeAt,
  nodeInDirection,
  type Options,
  type PictureNode,
  picture,
  progress,
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

const keys = (shown: readonly PictureNode[]) => shown.map((n) => n.key);

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
});

describe("what is left out", () => {
  it("are weights, which the ops then name", () => {
    const found = foldWeights(picture(MAIN, new Map(), ALL));
    expect(keys(found.nodes)).not.toContain("tensor:w");
    expect(found.nodes.find((n) => n.key === "s0")?.weights).toMatchObject([
      { name: "w", type: "f32[N]", kind: "param", line: 0 },
    ]);
    expect(found.links.every((l) => l.from !== "tensor:w")).toBe(true);
  });

  it("are weights that an open call hands on, down to the op that reads them", () => {
    const call = { ...MAIN, edges: [edge("tensor:w", "s1", "w"), edge("s1", "s2", "y")] };
    const found = foldWeights(picture(call, new Map([["s1", INNER]]), ALL));
    expect(keys(found.nodes)).toEqual(["input:0", "s0", "s1", "s1/s0", "s1/s1", "s2"]);
    expect(found.nodes.find((n) => n.key === "s1/s0")?.weights).toMatchObject([{ name: "w" }]);
  });

  it("is what is far from the focus in a large graph", () => {
    const whole = picture(chain(1000), new Map(), ALL);
    const part = neighbourhood(whole, "s500", 21);
    expect(part.nodes.length).toBe(21);
    expect(part.whole).toBe(1000);
    expect(keys(part.nodes)[0]).toBe("s490");
    expect(part.nodes[0]?.hidden).toBe(1);
    expect(part.nodes[10]?.hidden).toBe(0);
    expect(part.links.length).toBe(20);
  });

  it("is nothing where all fit", () => {
    const whole = picture(chain(20), new Map(), ALL);
    expect(neighbourhood(whole, "s3", 20)).toBe(whole);
  });

  it("is not reached through a weight that many share", () => {
    const shared = chain(200);
    shared.nodes.push(node("tensor:w", "param", "w", 0));
    shared.edges.push(edge("tensor:w", "s10", "w"), edge("tensor:w", "s190", "w"));
    const part = neighbourhood(picture(shared, new Map(), ALL), "s10", 9);
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
      reason: "step",
      calls: [],
      values: { h: "f32[4]", x: "" },
    };
    const found = Object.fromEntries(shown.map((n) => [n.key, progress(n, standing, [])]));
    expect(found).toEqual({
      "input:0": "done",
      "tensor:w": "done",
      s0: "done",
      s1: "now",
      s2: "later",
    });
    // Another stream may be ahead, or behind: values tell, not lines.
    const ahead = { ...standing, line: 4, values: {} };
    expect(shown.map((n) => progress(n, ahead, []))).toEqual([
      "done",
      "done",
      "later",
      "later",
      "now",
    ]);
    const inner = { ...standing, graph: "inner" };
    expect(shown.every((n) => progress(n, inner, []) === "none")).toBe(true);
  });

  it("say it of the call that the run is in, and of no other of its graph", () => {
    const shown = picture(MAIN, new Map([["s1", INNER]]), ALL).nodes;
    const node = shown.find((n) => n.key === "s1/s0");
    const standing = { uri: "file:///m.opg", graph: "inner", line: 11, reason: "", values: {} };
    const at = (calls: string[], path: string[]) =>
      node && progress(node, { ...standing, calls }, path);
    expect(at(["y"], [])).toBe("now");
    expect(at(["z"], [])).toBe("none");
    expect(at(["b1", "y"], [])).toBe("now"); // what is shown may be a call itself
    expect(at(["b1", "y"], ["b2"])).toBe("none");
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
    expect(nodeInDirection(at("a"), "down", places, links, false)).toBe("c");
    expect(nodeInDirection(at("d"), "up", places, links, false)).toBe("c");
    expect(nodeInDirection(at("b"), "right", places, links, false)).toBe("c");
    expect(nodeInDirection(at("c"), "left", places, links, false)).toBe("b");
    expect(nodeInDirection(at("a"), "up", places, links, false)).toBeUndefined();
  });

  it("turn with the drawing", () => {
    const turned = places.map(({ key, x, y }) => ({ key, x: y, y: x }));
    const a = turned[0] ?? { key: "a", x: 0, y: 0 };
    expect(nodeInDirection(a, "right", turned, links, true)).toBe("c");
  });
});

describe("texts", () => {
  const [, , h] = picture(MAIN, new Map(), ALL).nodes as [PictureNode, PictureNode, PictureNode];

  it("are titles, attributes and types", () => {
    expect(textOf(h, null)).toEqual({
      title: "h = relu",
      weights: [],
      detail: "axis=1",
      types: "f32[N]",
    });
    expect(statement(h)).toBe("h = relu(axis=1)");
  });

  it("give way to live values without a change of size", () => {
    const live = { h: "f32[8]  3 NaN of 8, mean of the rest 0.1  std 1.2  min -3  max 4" };
    expect(textOf(h, live).types).toBe("3 NaN");
    const measure = (text: string) => text.length * 7;
    expect(sizeOf(h, measure).width).toBe("-0.0123 ± 0.0456".length * 7 + 28);
  });

  it.each([
    ["f32[8, 8]  mean 0.5  std 2  min -1  max 1", "0.5 ± 2"],
    ["f32[4, 5]  mean -0.05967  std 1.039  min -2.087  max 1.62", "-0.0597 ± 1.04"],
    ["f32[8]  mean 12345.6  std 1.5e+20  min 0  max 2e+22", "12346 ± 1.5e+20"],
    ["3", "3"],
    ["f32[8]  7 -inf of 8, the rest 1", "7 -inf of 8, the rest 1"],
    ["i64[2]  [1, 2]", "[1, 2]"],
    ["f32[8]  dropped", "dropped"],
    ["f32[8]", "f32[8]"],
  ])("of %s are short", (text, wanted) => {
    expect(summarize(text)).toBe(wanted);
  });
});
