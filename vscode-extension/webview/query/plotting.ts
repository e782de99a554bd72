/** Requests for plots, and which columns of an answer to plot. */

import type { Answer, Plot } from "../../shared/query/messages";
import type { Rpc } from "./rpc";

let plots = 0;
let answered = 0;

/** How many points of a line a chart of this width can show. */
export function chartPoints({ clientWidth }: { clientWidth: number }): number {
  return Math.max(300, Math.round(clientWidth * 1.5));
}

/** The lines of a plot, with as many points as the screen can show; undefined if a later one was quicker. */
export async function requestPlot(
  rpc: Rpc,
  path: string,
  what: string,
  points: number,
  part: { low: number; high: number } | undefined,
): Promise<Plot | undefined> {
  const turn = ++plots;
  const params = { query: `plot-${turn}`, path, what, points, ...part };
  const plot = await rpc.request<Plot>("plot", params);
  if (turn < answered) {
    return undefined;
  }
  answered = turn;
  return plot;
}

/** What names a step or a moment, and is drawn along rather than up. */
const ALONG = ["step", "x", "execution", "start_ns", "turn", "exponent", "run", "id", "line", "op"];
const NOT_UP = new Set([
  "run",
  "other",
  "op",
  "line",
  "id",
  "execution",
  "result",
  "turn",
  "stream",
]);

/**
 * The columns to draw: one along, the others of numbers up, and one of texts that tells lines
 * apart. Undefined where there are not two columns of numbers.
 */
export function plotColumns(
  answer: Pick<Answer, "columns" | "kinds">,
): { x: number; ys: number[]; by?: number } | undefined {
  const numbers = answer.kinds.flatMap((kind, k) => (kind === "number" ? [k] : []));
  const named = ALONG.map((name) => answer.columns.indexOf(name));
  const x = named.find((k) => numbers.includes(k)) ?? numbers[0];
  if (x === undefined) {
    return undefined;
  }
  const rest = numbers.filter((k) => k !== x);
  const up = rest.filter((k) => !NOT_UP.has(answer.columns[k] ?? ""));
  const ys = up.length ? up : rest;
  if (!ys.length) {
    return undefined;
  }
  const by = BY.map((name) => answer.columns.indexOf(name)).find(
    (k) => k >= 0 && answer.kinds[k] === "text",
  );
  const stream = answer.columns.indexOf("stream");
  const chosen = by ?? (stream >= 0 && stream !== x ? stream : undefined);
  return { x, ys, ...(chosen !== undefined && { by: chosen }) };
}

const BY = ["name", "value", "site", "key", "tensor"];

/** Plots to start from, each with what it shows. */
export const PLOT_EXAMPLES: [string, string][] = [
  ["metrics.loss where run=*", "Loss of all runs, side by side"],
  ["metrics.seconds", "How long each step of the last run took"],
  ["stats.absmax", "Largest magnitude of each tensor: what grows?"],
  ["stats.nan where value=*", "NaNs by tensor and step"],
  ["stats.std where op=linear|conv2d", "Spread of values after layers"],
  ["executions.seconds where op=conv2d|linear|matmul", "Times of individual ops"],
];
