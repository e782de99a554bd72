/** Ready-made queries about what was chosen in the tree; what they are asked for comes first. */

import type { Part } from "./nodes";

/** About a part of a run, or about all of it. */
export function questionAbout(part: Part | undefined, run: number): string {
  switch (part) {
    case "findings":
      return `select step, kind, value, file, line, message from findings where run = ${run}`;
    case "steps":
      return `select step, end_ns - start_ns as took_ns from steps where run = ${run} order by step`;
    case "slowest":
      return `select statement, total_ns, mean_ns, executions, file, line\nfrom slowest_ops where run = ${run} order by total_ns desc`;
    case "tensors":
      return `select name, kind, step, dtype, shape, nbytes, saved from tensors where run = ${run}`;
    case "metrics":
      return `select step, name, value from metrics where run = ${run} order by step, name`;
    default:
      return `select step, value, mean, std, min, max, nan, line, site\nfrom stat_history where run = ${run} order by step desc, execution\nlimit 1000`;
  }
}

/** About all statistics of a step. */
export function questionAboutStep(run: number, step: number): string {
  return [
    "select r.name as value, s.nan, s.posinf, s.neginf, s.min, s.max, s.mean, s.std, s.absmax,",
    "  s.zero, s.count, o.file, o.line, o.site",
    "from stats as s join ops as o using (run, op) join results as r using (run, op, result)",
    `where s.run = ${run} and s.step = ${step} order by s.execution`,
  ].join("\n");
}
