/** Which debugger one is in. */

import type { Stop } from "../services";
import { KERNEL } from "./launch";

interface Level {
  icon: string;
  what: string;
}

/** What a session of ours steps: a kernel, Python's lines, or a graph; nothing while it runs. */
export function levelOf(
  session: { type: string; id: string; name: string } | undefined,
  stop: (Pick<Stop, "graph" | "python" | "isScript"> & { session: { id: string } }) | undefined,
): Level | undefined {
  if (session?.type === KERNEL) {
    return { icon: "symbol-method", what: session.name.replace(/,.*$/, "") };
  }
  if (session?.type !== "opstep" || stop?.session.id !== session.id || stop.isScript) {
    return undefined;
  }
  return stop.python
    ? { icon: "symbol-namespace", what: `Python (${stop.python.name})` }
    : { icon: "type-hierarchy-sub", what: `graph ${stop.graph}` };
}
