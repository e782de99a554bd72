/** A NaN report in one sentence. */

import { counted, grouped } from "../format";
import type { Link, NanReport } from "./messages";

/** In one sentence, why a tensor is not finite. */
export function summarize(report: NanReport): string {
  const tensor = report.links[0];
  if (report.summary) {
    return report.summary;
  }
  if (!report.found || !tensor) {
    return report.text;
  }
  const all = report.links.filter((link) => link.kind === "origin");
  const origins = all.filter((link) => !causeOf(report, link));
  const inputs = report.links.filter((link) => link.kind === "given");
  const cause = causeOf(report, tensor);
  const first = cause ? tensor : origins[0];
  const why = because(first);
  const [source] = inputs;
  const more = origins.length + inputs.length - 1;
  const others = more > 0 ? `; and ${more} more ${more === 1 ? "place" : "places"}` : "";
  if (first && (first === tensor || report.separate)) {
    const line = report.separate && first.line ? `${first.op}, line ${first.line}` : first.op;
    const of = `${countBad(first, report.separate)} of ${first.name}`;
    const born = `${of} ${first.count === 1 ? "was" : "were"} born in ${report.separate ? "" : "this op, "}${line}${why}${report.separate ? others : ""}.`;
    return cause ? `${born} ${cameFirst(cause)}` : born;
  }
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

/** Where the infinities were born of which an origin made its NaNs, if that is told, too: it is to be mended. */
export function causeOf(report: NanReport, link: Link): Link | undefined {
  if (link.kind !== "origin" || !link.caused?.length) {
    return undefined;
  }
  const leads = (other: Link, k: number) =>
    report.separate
      ? other.way?.some(({ name, line }) => name === link.name && line === link.line)
      : k > report.links.indexOf(link);
  const origins = report.links.filter(
    (other, k) => other !== link && other.kind === "origin" && leads(other, k),
  );
  return origins.findLast((other) => !other.caused?.length) ?? origins.at(-1);
}

/** `It made them of infinities from lg, the result of log, line 4: log of 0. Mend that first.` */
export function cameFirst(cause: Link): string {
  const line = cause.line ? `, line ${cause.line}` : "";
  const from = `${cause.name}, the result of ${cause.op}${line}`;
  return `It made them of infinities from ${from}${because(cause)}. Mend that first.`;
}

/** Of how many of the elements that were born there a rule tells. */
export function explainedBy(elements: number, { born, explained, count }: Link): string {
  const own = born ?? count ?? elements;
  return explained && explained < own
    ? `${grouped(elements)} of ${grouped(explained)} elements looked at, ${grouped(own)} born here.`
    : `${grouped(elements)} of ${grouped(own)} elements born here.`;
}

function because(link: Link | undefined): string {
  const rule = link?.rules?.[0]?.rule;
  return rule ? `: ${rule}` : "";
}

/** What a link has, NaNs and infinities apart: `5 NaNs and 2 infinities`; or those that were born there. */
export function countBad(link: Link, born = false): string {
  const count = (born && link.born) || link.count;
  if (!count) {
    return "NaNs or infinities";
  }
  const nan = Math.min(count, link.nan ?? (link.bad === "inf" ? 0 : count));
  const told = [
    nan && counted(nan, "NaN"),
    count > nan && counted(count - nan, "infinity", "infinities"),
  ];
  return told.filter(Boolean).join(" and ");
}

/** `7 infinities of lg are born here: log of 0` */
export function problemOf(link: Link): string {
  if (!link.count) {
    return link.text;
  }
  const count = link.born ?? link.count;
  const rule = link.rules?.[0]?.rule;
  const what = `${countBad(link, true)} of ${link.name} ${count === 1 ? "is" : "are"} born here`;
  return rule ? `${what}: ${rule}` : what;
}
