/** A NaN report (`opstep/nanReport`), and what people are told of it. */

export interface Tensor {
  name: string;
  type: string;
  memoryReference: string;
  /** Where the frame that asked has a name for it. */
  expression?: string;
}

export interface Blamed {
  name: string;
  operand: number;
  place: number[];
  value: number | string;
}

export interface BadElement {
  place: number[];
  value: number | string;
  rule: string;
  of: Blamed[];
}

export interface Link extends Tensor {
  kind: "origin" | "propagated" | "given" | "finite";
  text: string;
  op?: string;
  graph?: string;
  statement?: string;
  source?: { name?: string; path?: string; sourceReference?: number };
  line?: number;
  operands?: (Tensor & { operand: number })[];
  bad?: "nan" | "inf";
  count?: number;
  born?: number;
  rules?: { rule: string; elements: number }[];
  elements?: BadElement[];
}

export interface NanReport {
  found: boolean;
  text: string;
  /** From the tensor that was asked about back to where it began. */
  links: Link[];
}

/** What went wrong in a run that a workspace recorded. */
export interface Finding {
  run: string;
  step: number | null;
  kind: string;
  value: string;
  op: string;
  file: string;
  line: number;
  message: string;
}

/** What the page is sent. */
export type ToNanPage =
  | { kind: "report"; report: NanReport; title: string; where: string; held: boolean }
  | { kind: "findings"; findings: Finding[]; title: string }
  | { kind: "stale" }
  | { kind: "error"; text: string };

/** What the page asks for. */
export type FromNanPage =
  | { kind: "ready" }
  | { kind: "line"; link: number }
  | { kind: "element"; link: number; operand?: number; place: number[] }
  | { kind: "finding"; finding: number }
  | { kind: "copy" };

const EXPLAINED: readonly [RegExp, string][] = [
  [
    /^log of 0/,
    "The logarithm of 0 is −infinity. Add a small number below the log, or use an op that has it inside (softmax_cross_entropy, log_softmax).",
  ],
  [/^log of a negative/, "A logarithm has no value below 0: what comes in should not be negative."],
  [
    /square root of a negative/,
    "A square root has no value below 0. A variance that is computed as a difference of squares may come out slightly negative.",
  ],
  [
    /^0 \/ 0/,
    "0 divided by 0 is undefined. Keep the divisor away from 0, or leave such elements out.",
  ],
  [
    /division by (0|a variance of 0)/,
    "A number divided by 0 is infinite. Keep the divisor away from 0 by an epsilon.",
  ],
  [/^1 \/ (0|sqrt)/, "The inverse of 0 is infinite. Keep the operand away from 0 by an epsilon."],
  [/inf \/ inf/, "A quotient of infinities is undefined: look for where the infinities come from."],
  [
    /inf - inf/,
    "A difference of infinities is undefined: look for where the infinities come from.",
  ],
  [
    /0 times infinity/,
    "0 times an infinity is undefined. A mask that multiplies does not take infinities away; where does.",
  ],
  [
    /overflow of f16/,
    "The result is beyond 65,504, the largest f16. Compute it in f32 or bf16, or scale it down first.",
  ],
  [
    /overflow of/,
    "The result is beyond the largest number of its type. A wider type, or smaller operands, would hold it.",
  ],
  [
    /all elements of the row are -inf/,
    "A row whose elements are all masked has no largest one: leave one element unmasked.",
  ],
  [/label/, "Labels must be the numbers of classes, and at least one must count."],
  [/power/, "Such a power has no real value."],
  [/epsilon is 0/, "Give the op an epsilon above 0."],
  [/defined/, "The operand is outside the range in which the function has a value."],
];

/** What a rule means, and what helps; empty where its own words are enough. */
export function explained(rule: string): string {
  return EXPLAINED.find(([pattern]) => pattern.test(rule))?.[1] ?? "";
}

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
export function badness(link: Link): string {
  const what = link.bad === "inf" ? ["infinity", "infinities"] : ["NaN", "NaNs"];
  const count = link.count ?? 0;
  return count
    ? `${count.toLocaleString("en-US")} ${what[count === 1 ? 0 : 1]}`
    : "NaNs or infinities";
}

/** What a link is, in a word or two. */
export function kindOf(link: Link): string {
  const words = {
    origin: "born here",
    propagated: "passed on",
    given: "given from outside",
    finite: "finite",
  };
  return words[link.kind];
}

/** The file, lines and values of a way, the origin first. */
export function wayOf(
  report: NanReport,
  fallback: string,
): { path: string; lines: number[]; values: string[] } | undefined {
  const links = [...report.links].reverse();
  if (!report.found || !links.length) {
    return undefined;
  }
  const path = links.find((link) => link.source?.path)?.source?.path ?? fallback;
  const there = links.filter((link) => !link.source?.path || link.source.path === path);
  return {
    path,
    lines: there.flatMap((link) => (link.line ? [link.line] : [])),
    values: there.map((link) => link.name),
  };
}
