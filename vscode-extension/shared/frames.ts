/** What a frame of the call stack is called: `main`, `halve [i=3]`, `down:b1/full = block`. */

export interface FrameName {
  graph: string;
  /** What the calls that lead here are for, the outermost first: `["b1", "full"]`. */
  calls: string[];
}

export function parseFrame(name: string): FrameName {
  const at = name.lastIndexOf(" = ");
  const graph = /^[A-Za-z_]\w*/.exec(name.slice(at < 0 ? 0 : at + 3))?.[0] ?? name;
  const path = at < 0 ? [] : name.slice(0, at).split("/");
  return { graph, calls: path.map((call) => call.split(":").at(-1) ?? call) };
}

/** What a call is for, among those of one graph: its first result. */
export function purpose({ name }: { name: string }): string {
  return name.split(", ", 1)[0] ?? name;
}

/** What a call is called among those of one graph. */
export function callName(graph: string, call: string | undefined): string {
  return call === undefined ? graph : `${call} = ${graph}`;
}

/** Whether two ways may lead to the same call: the longer one may have begun further out. */
export function sameCall(one: readonly string[], other: readonly string[]): boolean {
  const least = Math.min(one.length, other.length);
  const [a, b] = [one, other].map((calls) => calls.slice(calls.length - least).join("/"));
  return a === b;
}

/** What the calls of a path are for, from the last graph that no call leads to. */
export function callsOf(path: readonly { call?: string }[]): string[] {
  const from = path.findLastIndex((entry) => entry.call === undefined) + 1;
  return path.slice(from).map(({ call = "" }) => call);
}
