/** Search in the Graph view: of a large graph, also what is not drawn. */

import { describe, expect, it } from "vitest";
import type { GraphData, GraphNode } from "../../shared/graph/messages";
import { type PictureNode, picture } from "../../webview/graph/model";
import { Search } from "../../webview/graph/search";

type Key = string | undefined;

function op(id: number): GraphNode {
  const name = `v${id}`;
  return {
    id: `s${id}`,
    kind: "op",
    name,
    op: id % 100 === 99 ? "softmax" : "relu",
    lines: [id, id],
    column: 2,
    args: [],
    calls: [],
    values: [{ name, type: "f32[N]" }],
  };
}

function chain(count: number): GraphData {
  const nodes = Array.from({ length: count }, (_, k) => op(k));
  const edges = nodes
    .slice(1)
    .map((n, k) => ({ from: `s${k}`, to: n.id, value: `v${k}`, type: "f32[N]", place: 0 }));
  const uri = "file:///m.opg";
  return { uri, graph: "main", version: 1, lines: [0, 99], inputs: [], nodes, edges, graphs: [] };
}

/** A search over a chain of which 100 nodes around the chosen one are drawn. */
function search(count: number) {
  const draw = (focus: string | null) =>
    picture(chain(count), new Map(), { weights: false, most: 100, focus });
  const state = {
    terms: [] as string[],
    found: new Set<string>() as ReadonlySet<string>,
    chosen: undefined as Key,
  };
  const scene = {
    picture: draw(null),
    shown: (key: Key): PictureNode | undefined => scene.picture.nodes.find((n) => n.key === key),
  };
  const bar = {
    search: { value: "", focus: () => {}, select: () => {} },
    count: { textContent: "" as string | null },
    buttons: { next: { disabled: false }, previous: { disabled: false } },
  };
  const found = new Search(bar, scene, state, (key) => {
    state.chosen = key;
    if (scene.shown(key) === undefined) {
      scene.picture = draw(key ?? null);
    }
  });
  const type = (text: string) => {
    bar.search.value = text;
    return found.jump();
  };
  return { found, state, scene, type, text: () => bar.count.textContent };
}

describe("search in a large graph", () => {
  it("finds what is not drawn, counts it, and has it drawn", () => {
    const { type, text, state, scene } = search(3000);
    expect(scene.shown("s2042")).toBeUndefined();
    expect(type("v2042")).toBe(true);
    expect(state.chosen).toBe("s2042");
    expect(scene.shown("s2042")).toBeDefined();
    expect(text()).toBe("1 found, 1 not drawn");
  });

  it("goes to what is drawn first, and says how many are not", () => {
    const { type, text, state } = search(3000);
    expect(type("softmax")).toBe(true);
    expect(state.chosen).toBe("s99");
    expect(text()).toBe("30 found, 29 not drawn");
  });

  it("goes from one to the next through the whole graph, and says which one it is", () => {
    const { found, type, text, state, scene } = search(3000);
    type("softmax");
    found.next(1);
    expect([state.chosen, text()]).toEqual(["s199", "2 of 30"]);
    expect(scene.shown("s199")).toBeDefined();
    found.next(-1);
    found.next(-1);
    expect([state.chosen, text()]).toEqual(["s2999", "30 of 30"]);
    found.find(); // as after each drawing
    expect(text()).toBe("30 of 30");
  });

  it("finds nothing where there is nothing", () => {
    const { type, text, found, state } = search(3000);
    expect(type("conv2d")).toBe(false);
    expect(text()).toBe("0 found");
    found.clear();
    expect([text(), state.found.size]).toEqual(["", 0]);
  });

  it("says no more than the number where all is drawn", () => {
    const { type, text } = search(100);
    type("relu");
    expect(text()).toBe("99 found");
  });
});
