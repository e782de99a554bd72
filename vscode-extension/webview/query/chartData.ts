/** Lines as the chart library takes them: all over one list of xs. */

import { counted, significant } from "../../shared/format";
import type { Plot, PlotLine } from "../../shared/query/messages";

/** Lines that have a colour and a name; the others stand pale behind them. */
export const NAMED = 8;

/** Values by x: null is a gap, undefined is no point of this line, which goes on. */
export type Aligned = [number[], ...(number | null | undefined)[][]];

/** One list of xs with the values of each line at them; several points at one x lie side by side. */
export function alignLines(lines: PlotLine[]): Aligned {
  const all = new Set<number>();
  const moved = lines.map((line) => ({ ...line, xs: separate(line.xs) }));
  for (const line of moved) {
    for (const x of line.xs) {
      all.add(x);
    }
  }
  const xs = [...all].sort((a, b) => a - b);
  const at = new Map(xs.map((x, k) => [x, k]));
  const columns = moved.map((line) => {
    const ys = new Array<number | null | undefined>(xs.length).fill(undefined);
    for (const [k, x] of line.xs.entries()) {
      ys[at.get(x) as number] = line.ys[k];
    }
    return ys;
  });
  return [xs, ...columns];
}

/** xs that go up strictly: equal ones are spread over a little of the way to the next. */
export function separate(xs: number[]): number[] {
  const found = [...xs];
  for (let begin = 0; begin < xs.length; ) {
    let end = begin + 1;
    while (end < xs.length && xs[end] === xs[begin]) {
      end++;
    }
    const x = xs[begin] as number;
    const room = ((xs[end] ?? x + 1) - x) / (end - begin);
    for (let k = begin + 1; k < end; k++) {
      found[k] = x + room * (k - begin);
    }
    begin = end;
  }
  return found;
}

/** Whether positive figures lie so far apart that only a logarithmic scale shows them. */
export function needsLogScale(lines: PlotLine[]): boolean {
  let [least, greatest] = [Number.POSITIVE_INFINITY, 0];
  for (const line of lines) {
    for (const y of line.ys) {
      if (y !== null) {
        least = Math.min(least, y);
        greatest = Math.max(greatest, y);
      }
    }
  }
  return least > 0 && greatest / least > 1000;
}

/** What a logarithmic scale has no place for is left out. */
export function dropNonPositive(data: Aligned): Aligned {
  const [xs, ...columns] = data;
  const loggable = columns.map((ys) =>
    ys.map((y) => (y !== null && y !== undefined && y <= 0 ? null : y)),
  );
  return [xs, ...loggable];
}

interface Unit {
  factor: number;
  label: string;
}

/** The unit that the figures are easiest to read in. */
export function unitOf(plot: Pick<Plot, "unit" | "lines">): Unit {
  if (plot.unit !== "seconds") {
    return { factor: 1, label: plot.unit };
  }
  let greatest = 0;
  for (const line of plot.lines) {
    for (const y of line.ys) {
      greatest = Math.max(greatest, Math.abs(y ?? 0));
    }
  }
  if (greatest < 1e-3) {
    return { factor: 1e6, label: "µs" };
  }
  return greatest < 1 ? { factor: 1e3, label: "ms" } : { factor: 1, label: "s" };
}

/** Figures at the axis: short, in whole powers where they are large. */
export function tick(value: number | null): string {
  if (value === null) {
    return "";
  }
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) {
    return value
      .toExponential(size >= 1e5 && Number(value.toPrecision(2)) === value ? 0 : 1)
      .replace("e+", "e")
      .replace(".0e", "e");
  }
  return significant(value, 6);
}

/** What the chart shows, in words, for those who do not see it. */
export function summary(plot: Plot): string {
  const [first] = plot.lines;
  if (!first) {
    return "An empty chart";
  }
  const names = plot.lines.slice(0, NAMED).map((line) => line.label);
  const odd = plot.odd.length ? ` NaN or infinity at ${counted(plot.odd.length, "place")}.` : "";
  return `Chart of ${counted(plot.all, "line")} by ${plot.axis}: ${names.join(", ")}.${odd} Run a query to get the same values as a table.`;
}
