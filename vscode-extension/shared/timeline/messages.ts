/** The messages between the Timeline view's page, the extension host and the frame with Perfetto. */

/** A slice of the trace. Times are nanoseconds, as texts: they go beyond what a number holds. */
export interface Slice {
  id: string;
  name: string;
  category: string;
  ts: string;
  dur: string;
  /** `file`, `line`, `statement`, `op`, `step`, `run` … (docs/timeline.md) */
  args: Record<string, string | null>;
}

/** A slice of a line that was asked for. */
export interface LineSlice {
  id: string;
  name: string;
  ts: string;
  dur: string;
  run: string;
  step: string;
}

/** A line of a program, from 1, and what stands there. */
export interface LineQuery {
  file: string;
  line: number;
  text: string;
}

export type HostMessage =
  | { kind: "open"; address: string }
  | ({ kind: "find" } & LineQuery)
  | { kind: "failed"; text: string }
  | { kind: "note"; text: string };

export type PageMessage =
  | { kind: "ready"; origins: string[] }
  | { kind: "loaded" }
  | { kind: "selected"; slice: Slice | null }
  | { kind: "retry" };

/** From the frame; see opstep/trace/viewer/bridge.js. */
export type FrameMessage =
  | { opstep: "ready" }
  | { opstep: "selected"; slice: Slice | null; echo: boolean }
  | { opstep: "found"; request: number; slices: LineSlice[] }
  | { opstep: "failed"; request?: number; text: string }
  | ({ opstep: "key" } & Key);

/** What a keyboard event is made of again. */
interface Key {
  key: string;
  code: string;
  keyCode: number;
  ctrlKey: boolean;
  shiftKey: boolean;
  altKey: boolean;
  metaKey: boolean;
}
