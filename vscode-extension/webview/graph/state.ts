/** What is known about the graph beside its text, and what that makes of each node. */

import type { Breakpoint, GraphData, StopState, Tainted } from "../../shared/graph/messages";
import type { Marks } from "./drawing";
import { type PictureNode, progress, standsIn } from "./model";

export class State {
  data: GraphData | undefined;
  /** What the calls that lead to the graph are for. */
  calls: string[] = [];
  cursor: string | undefined;
  chosen: string | undefined;
  /** What is searched for, and what was found, drawn or not. */
  terms: string[] = [];
  found: ReadonlySet<string> = new Set();
  stop: StopState | null = null;
  /** Of the frame where the run stands: lines of values by name. */
  values: Record<string, string> = {};
  breakpoints: Record<string, Breakpoint[]> = {};
  tainted: Tainted | null = null;
  /** By line. */
  streams: Record<number, number> | null = null;

  readonly marks = (shown: PictureNode): Marks => {
    const [first, last] = shown.node.lines;
    const own = this.data?.uri === shown.uri && this.data.graph === shown.graph;
    const at = (line: number) => first <= line && line <= last;
    const breakpoint = (this.breakpoints[shown.uri] ?? []).find((b) => at(b.line));
    const nan = this.tainted?.uri === shown.uri ? this.tainted.lines : {};
    const bad = Object.entries(nan).find(([line]) => at(Number(line)))?.[1] ?? shown.node.bad;
    const stopped = this.stop !== null && standsIn(shown, this.stop, this.calls);
    const found = this.found.has(shown.key);
    return {
      progress: progress(shown, this.stop, this.calls),
      cursor: shown.key === this.cursor,
      chosen: shown.key === this.chosen,
      found,
      faded: this.terms.length > 0 && !found,
      tainted: !bad || shown.node.kind === "input" ? null : bad,
      stream: own && this.streams !== null ? (this.streams[first] ?? null) : null,
      breakpoint: !breakpoint
        ? null
        : !breakpoint.enabled
          ? "off"
          : breakpoint.special
            ? "special"
            : "on",
      live: stopped ? this.values : null,
    };
  };
}
