/** All graphs of a model's program: what is in its calls is found, too, and shown by opening them. */

import type { GraphData } from "../../shared/graph/messages";
import { type PictureNode, picture } from "./model";

export class Library {
  private graphs = new Map<string, GraphData>();
  private last: { data: GraphData; weights: boolean; nodes: readonly PictureNode[] } | undefined;

  set(graphs: readonly GraphData[]): void {
    this.graphs = new Map(graphs.map((data) => [data.graph, data]));
    this.last = undefined;
  }

  /** The nodes of a graph and of all its calls; undefined where the graphs are not known. */
  nodes(data: GraphData, weights = false): readonly PictureNode[] | undefined {
    if (this.graphs.size === 0) {
      return undefined;
    }
    if (this.last?.data !== data || this.last.weights !== weights) {
      const options = { weights, most: Number.POSITIVE_INFINITY, focus: null };
      this.last = { data, weights, nodes: picture(data, this.unfolded(data), options).all };
    }
    return this.last.nodes;
  }

  /** Opens the calls around a node; whether one was closed. */
  open(key: string, data: GraphData, expanded: Map<string, GraphData>): boolean {
    const before = expanded.size;
    let around = data;
    let prefix = "";
    for (const id of key.split("/").slice(0, -1)) {
      prefix += (prefix && "/") + id;
      const inside = expanded.get(prefix) ?? this.called(around, id);
      if (inside === undefined) {
        break;
      }
      expanded.set(prefix, inside);
      around = inside;
    }
    return expanded.size > before;
  }

  private called(data: GraphData, id: string): GraphData | undefined {
    const calls = data.nodes.find((node) => node.id === id)?.calls ?? [];
    return calls.length === 1 ? this.graphs.get(calls[0] ?? "") : undefined;
  }

  /** Every call as if it were open, by key. */
  private unfolded(
    data: GraphData,
    prefix = "",
    found = new Map<string, GraphData>(),
  ): Map<string, GraphData> {
    for (const { id } of data.nodes) {
      const inside = this.called(data, id);
      if (inside) {
        found.set(prefix + id, inside);
        this.unfolded(inside, `${prefix}${id}/`, found);
      }
    }
    return found;
  }
}
