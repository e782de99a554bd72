/** How the tree writes runs, steps, tensors and sizes. */

import { counted, duration, grouped, significant } from "../../shared/format";
import type {
  Finding,
  Metric,
  Run,
  RunDetail,
  SlowOp,
  Step,
  StoredTensor,
  WorkspaceStatus,
} from "./requests";

/** Names of the workbench's icons, with a colour of the theme. */
export interface Icon {
  name: string;
  colour?: string;
}

const STATUS: Record<Run["status"], Icon> = {
  done: { name: "pass", colour: "testing.iconPassed" },
  running: { name: "loading~spin" },
  failed: { name: "error", colour: "testing.iconFailed" },
  interrupted: { name: "debug-stop", colour: "charts.yellow" },
  incomplete: { name: "warning", colour: "charts.yellow" },
  killed: { name: "circle-slash", colour: "charts.yellow" },
};

/** What a run's icon is: one that is done but has findings warns. */
export function runIcon(run: Pick<Run, "status" | "findings">): Icon {
  if (run.status === "done" && run.findings > 0) {
    return { name: "warning", colour: "list.warningForeground" };
  }
  return STATUS[run.status] ?? { name: "question" };
}

/**
 * `failed · 2 findings · 200 steps · 1.4 s · 5 min ago · train.opg · cpu · 3f2a9c01`, behind the graph's
 * name: a narrow view shows the beginning.
 */
export function runDescription(run: Run, now: number): string {
  const parts = [
    run.status !== "done" && run.status,
    run.findings > 0 && counted(run.findings, "finding"),
    counted(run.steps, "step"),
    run.seconds !== null && duration(run.seconds),
    ago(run.began, now),
    run.file?.split(/[\\/]/).at(-1),
    run.device,
    run.key,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** All about a run, a line each, as a table of Markdown. */
export function runTooltip(run: Run): string {
  const facts = runFacts(run).map(([name, value]) => `| ${name} | ${escaped(value)} |`);
  const error = run.error ? `\n\n${fenced(run.error)}` : "";
  return `**${escaped(run.graph)}** ${escaped(run.status)}\n\n| | |\n|---|---|\n${facts.join("\n")}${error}`;
}

/** Names and values of what is known of a run. */
export function runFacts(run: Run | RunDetail): [string, string][] {
  const facts: [string, string][] = [
    ["run", `${run.key} (${run.id})`],
    ["program", run.file ?? "a text"],
    ["began", moment(run.began)],
    ["status", run.status],
    ["steps", grouped(run.steps)],
  ];
  if (run.seconds !== null) {
    facts.push(["took", duration(run.seconds)]);
  }
  facts.push(["device", run.kernels ? `${run.device}, ${run.kernels} kernels` : run.device]);
  facts.push([
    "how",
    `${counted(run.streams, "stream")}, alloc ${run.alloc}, fill ${run.fill}, sync ${run.sync}`,
  ]);
  facts.push(["seed", String(run.seed)]);
  facts.push([
    "statistics",
    run.every > 1 ? `${run.selection}, each ${run.every} steps` : run.selection,
  ]);
  if ("ops" in run) {
    facts.push(["ops", `${grouped(run.ops)}, run ${grouped(run.executions ?? 0)} times`]);
  }
  if (run.arena_bytes !== null) {
    facts.push([
      "memory",
      `${byteSize(run.arena_bytes)} temporary, ${byteSize(run.param_bytes ?? 0)} params and states`,
    ]);
  }
  if (run.trace) {
    facts.push(["timeline", run.trace]);
  }
  facts.push(["where", `${run.host}, process ${run.pid}, opstep ${run.version}`]);
  return facts;
}

/** What stands beside a workspace's name. */
export function statusDescription(status: WorkspaceStatus, folder: string): string {
  if (status.kind !== "workspace") {
    return [PROBLEMS[status.kind] ?? status.kind, folder].filter(Boolean).join(" · ");
  }
  const parts = [counted(status.runs ?? 0, "run")];
  if (status.running) {
    parts.unshift(`${status.running} running`); // and the size is another each second
  } else {
    parts.push(byteSize(status.bytes ?? 0));
  }
  return [...parts, folder].filter(Boolean).join(" · ");
}

const PROBLEMS: Record<string, string> = {
  absent: "was deleted",
  foreign: "not a workspace",
  folder: "a folder",
  empty: "empty",
  older: "older version",
  newer: "newer version",
  locked: "locked",
  damaged: "damaged",
  unreadable: "cannot be read",
};

/** `loss 0.31 · 12 ms` */
export function stepDescription(step: Step): string {
  const metrics = Object.entries(step.metrics).filter(([name]) => name !== "seconds");
  const parts = metrics.slice(0, 3).map(([name, value]) => `${name} ${figure(value)}`);
  parts.push(duration(step.ns / 1e9));
  if (step.odd) {
    parts.push(`NaN or inf in ${counted(step.odd, "tensor")}`);
  }
  return parts.join(" · ");
}

/** `f32[6, 3] · after step 29 · 72 bytes` */
export function tensorDescription(tensor: StoredTensor): string {
  const when =
    tensor.step === null
      ? "saved by hand"
      : tensor.step < 0
        ? "before the first step"
        : `after step ${tensor.step}`;
  return [tensor.type, when, byteSize(tensor.nbytes)].join(" · ");
}

export function findingLabel(finding: Finding): string {
  const file = finding.file?.split(/[\\/]/).at(-1);
  return file ? `${file}:${finding.line}` : finding.kind;
}

/** `h = linear` of `h = linear(a, fc.w, fc.b)`: short, as its time stands behind it. */
export function slowLabel(op: SlowOp): string {
  return /^[^(]*[^(\s]/.exec(op.statement ?? "")?.[0] ?? op.site;
}

/** `12.3 ms · 34 % · 200 times` */
export function slowDescription(op: SlowOp, total: number): string {
  const share = total > 0 ? `${Math.round((100 * op.total_ns) / total)} %` : "";
  return [duration(op.total_ns / 1e9), share, counted(op.executions, "time")]
    .filter(Boolean)
    .join(" · ");
}

/** Spans of steps, so that no level of the tree has more than some hundred entries. */
export function stepSpans(
  first: number,
  last: number,
  most = 100,
): { first: number; last: number }[] {
  const count = last - first + 1;
  if (count <= most) {
    return [];
  }
  let width = most;
  while (Math.ceil(count / width) > most) {
    width *= most;
  }
  const spans: { first: number; last: number }[] = [];
  for (let at = first - (first % width); at <= last; at += width) {
    spans.push({ first: Math.max(at, first), last: Math.min(at + width - 1, last) });
  }
  return spans;
}

// --- numbers ---

/** `1.5 MiB` */
export function byteSize(bytes: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let k = 0;
  let value = bytes;
  while (value >= 1024 && k < units.length - 1) {
    value /= 1024;
    k++;
  }
  return k === 0 ? counted(bytes, "byte") : `${significant(value, 3)} ${units[k]}`;
}

/** A metric's value; null is how NaN is stored. */
function figure(value: number | string | null): string {
  if (value === null) {
    return "NaN";
  }
  return typeof value === "string" ? value : significant(value, 5);
}

/** A metric as the tree shows it: `seconds` are a time. */
/** `0.31235  █▆▄▂▁`: the last value, and how it came to that. */
export function metricDescription({ name, value, curve }: Metric): string {
  return [metricText(name, value), sparkline(curve)].filter(Boolean).join("  ");
}

const BARS = "▁▂▃▄▅▆▇█";

/** Values as a line of bars, the least as the lowest; what is no number is a cross. */
export function sparkline(values: readonly (number | string | null)[]): string {
  const numbers = values.filter((v) => typeof v === "number");
  if (values.length < 2 || numbers.length === 0) {
    return "";
  }
  const [least, most] = [Math.min(...numbers), Math.max(...numbers)];
  const bar = (v: number) =>
    BARS[most > least ? Math.round(((v - least) / (most - least)) * (BARS.length - 1)) : 0];
  return values.map((v) => (typeof v === "number" ? bar(v) : "×")).join("");
}

function metricText(name: string, value: number | string | null): string {
  return name === "seconds" && typeof value === "number" ? duration(value) : figure(value);
}

function moment(iso: string): string {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? iso : at.toLocaleString();
}

/** How long ago, in one unit. */
export function ago(iso: string, now: number): string {
  const seconds = (now - new Date(iso).getTime()) / 1000;
  if (Number.isNaN(seconds)) {
    return iso;
  }
  if (seconds < 45) {
    return "just now";
  }
  const units: [number, string][] = [
    [86400, "day"],
    [3600, "hour"],
    [60, "min"],
  ];
  for (const [length, name] of units) {
    const count = Math.round(seconds / length);
    if (count >= 1) {
      return `${count} ${name}${count > 1 && name !== "min" ? "s" : ""} ago`;
    }
  }
  return "just now";
}

/** Markdown that shows a text as it is, in one line. */
function escaped(text: string): string {
  return text.replace(/\s+/g, " ").replace(/([\\`*_{}[\]<>|#&!~])/g, "\\$1");
}

/** A block of code that nothing in the text ends. */
function fenced(text: string): string {
  const runs = text.match(/`+/g) ?? [];
  const fence = "`".repeat(Math.max(3, ...runs.map((run) => run.length + 1)));
  return `${fence}\n${text}\n${fence}`;
}
