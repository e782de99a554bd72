/** A NaN report in one sentence. */

import { counted } from "../format";
import type { Link, NanReport } from "./messages";

/** In one sentence, why a tensor is not finite. */
export function sentence(report: NanReport): string {
  const asked = report.links[0];
  if (!report.found || !asked) {
    return report.text;
  }
  const origins = report.links.filter((link) => link.kind === "origin");
  const given = report.links.filter((link) => link.kind === "given");
  const [first] = origins;
  const rule = first?.rules?.[0]?.rule;
  const why = rule ? `: ${rule}` : "";
  if (first === asked) {
    return `${badness(asked)} of ${asked.name} ${asked.count === 1 ? "was" : "were"} born in this op, ${asked.op}${why}.`;
  }
  const [source] = given;
  const more = origins.length + given.length - 1;
  const others = more > 0 ? `; and ${more} more ${more === 1 ? "place" : "places"}` : "";
  if (first) {
    const line = first.line ? `, line ${first.line}` : "";
    return `${badness(asked)} of ${asked.name} ${asked.count === 1 ? "comes" : "come"} from ${first.name}, the result of ${first.op}${line}${why}${others}.`;
  }
  if (source) {
    return source === asked
      ? `${asked.name} came into the run with them.`
      : `${badness(asked)} of ${asked.name} ${asked.count === 1 ? "comes" : "come"} from ${source.name}, which came into the run with them${others}.`;
  }
  return `${badness(asked)} of ${asked.name}: ${report.links.length} ops were followed back, and their origin is further on.`;
}

/** `24 NaNs` */
export function badness({ bad, count }: Link): string {
  if (!count) {
    return "NaNs or infinities";
  }
  return bad === "inf" ? counted(count, "infinity", "infinities") : counted(count, "NaN");
}
