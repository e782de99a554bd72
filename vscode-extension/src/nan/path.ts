/** The path of NaNs and infinities through a program, for views that colour it. */

import type { NanReport } from "../../shared/nan/messages";

/**
 * `path`: the file; `lines` from 1 and `values` by name, from the origin to what was asked about;
 * `calls`: lines that call graphs in which some of it happened.
 */
export interface NanPath {
  path: string;
  lines: number[];
  calls: number[];
  values: string[];
}

/** The file, lines and values of a report, the origin first. */
export function pathOf(report: NanReport, fallback: string): NanPath | undefined {
  const links = [...report.links].reverse();
  if (!report.found || !links.length) {
    return undefined;
  }
  const path = links.find((link) => link.source?.path)?.source?.path ?? fallback;
  const there = links.filter((link) => !link.source?.path || link.source.path === path);
  const calls = links.flatMap(({ through = [] }) => through.filter((call) => call.path === path));
  return {
    path,
    calls: [...new Set(calls.map(({ line }) => line))],
    lines: there.flatMap((link) => (link.line ? [link.line] : [])),
    values: there.map((link) => link.name),
  };
}
