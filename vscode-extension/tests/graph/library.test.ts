import { expect, it } from "vitest";
import type { GraphData, GraphNode } from "../../shared/graph/messages";
import { Library } from "../../webview/graph/library";

function node(id: string, op: string, calls: string[] = []): GraphNode {
  const kind = calls.length > 0 ? "call" : "op";
  const values = [{ name: id, type: "f32[2]" }];
  return { id, kind, name: id, op, lines: [1, 1], column: 0, args: [], calls, values };
}

function graph(name: string, nodes: GraphNode[]): GraphData {
  const rest = { version: null, inputs: [], edges: [], graphs: [] };
  return { uri: "file:///net.opg", graph: name, lines: [0, 9], nodes, ...rest };
}

const INNER = graph("Inner", [node("s0", "relu")]);
const BLOCK = graph("Block", [node("s0", "linear"), node("s1", "Inner", ["Inner"])]);
const MAIN = graph("main", [node("s0", "Block", ["Block"]), node("s1", "Block", ["Block"])]);

it("has the nodes of all calls, and opens those around one", () => {
  const library = new Library();
  expect(library.nodes(MAIN)).toBeUndefined();
  library.set([MAIN, BLOCK, INNER]);
  const found = library.nodes(MAIN)?.filter(({ node }) => node.op === "relu");
  expect(found?.map(({ key }) => key)).toEqual(["s0/s1/s0", "s1/s1/s0"]);

  const expanded = new Map<string, GraphData>();
  expect(library.open("s1/s1/s0", MAIN, expanded)).toBe(true);
  expect([...expanded.keys()]).toEqual(["s1", "s1/s1"]);
  expect(library.open("s1/s1/s0", MAIN, expanded)).toBe(false);
  expect(library.open("s1", MAIN, expanded)).toBe(false);
});
