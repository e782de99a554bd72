/** A NaN report in one sentence. */

import { counted } from "../format";
import type { Link, NanReport } from "./messages";

/** In one sentence, why a tensor is not finite. */
export function summarize(report: NanReport): string {
  const tensor = report.links[0];
  if (!report.found || !tensor) {
    return report.text;
  }
  const origins = report.links.filter((link) => link.kind === "origin");
  const inputs = report.links.filter((link) => link.kind === "given");
  const [first] = origins;
  const rule = first?.rules?.[0]?.rule;
  const why = rule ? `: ${rule}` : "";
  if (first === tensor) {
    return `${countBad(tensor)} of ${tensor.name} ${tensor.count === 1 ? "was" : "were"} born in this op, ${tensor.op}${why}.`;
  }
  const [source] = inputs;
  const more = origins.length + inputs.length - 1;
  const others = more > 0 ? `; and ${more} more ${more === 1 ? "place" : "places"}` : "";
  if (first) {
    const line = first.line ? `, line ${first.line}` : "";
    return `${countBad(tensor)} of ${tensor.name} ${tensor.count === 1 ? "comes" : "come"} from ${first.name}, the result of ${first.op}${line}${why}${others}.`;
  }
  if (source) {
    return source === tensor
      ? `${tensor.name} entered the run with them.`
      : `${countBad(tensor)} of ${tensor.name} ${tensor.count === 1 ? "comes" : "come"} from ${source.name}, which entered the run with them${others}.`;
  }
  return `${countBad(tensor)} of ${tensor.name}: ${report.links.length} ops were traced; the origin lies further back.`;
}

/** `24 NaNs` */
function countBad({ bad, count }: Link): string {
  if (!count) {
    return "NaNs or infinities";
  }
  return bad === "inf" ? counted(count, "infinity", "infinities") : counted(count, "NaN");
}
