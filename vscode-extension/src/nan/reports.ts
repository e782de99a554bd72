/** Reports from what `opstep hunt --json` tells, and from findings that a workspace keeps. */

import type { BadElement, Finding, Link, NanReport, Place } from "../../shared/nan/messages";

interface HuntedPlace {
  value: string;
  op: string | null;
  file: string | null;
  line: number | null;
  through?: HuntedCall[];
}

interface HuntedCall {
  file: string;
  line: number;
}

interface HuntedFinding {
  kind: string;
  bad: string;
  message: string;
  value: string;
  type: string;
  op: string | null;
  given: string | null;
  graph: string | null;
  file: string | null;
  line: number | null;
  statement: string | null;
  backward?: string | null;
  output: string | null;
  chain: HuntedPlace[];
  through?: HuntedCall[];
  before: (HuntedPlace & { place: number[]; number: number | string; rule: string }) | null;
  operands?: ({ name: string; type: string } | null)[];
  count?: number;
  own?: number;
  size?: number;
  explained?: number;
  caused?: string[];
  rules?: { rule: string; elements: number; advice?: string }[];
  elements?: BadElement[];
  /** Of a script: its module, what made it so, and what came of it. */
  module?: string | null;
  causes?: string[];
  harm?: string;
}

/** What a hunt found, as `opstep hunt --json` writes it. */
export interface Hunted {
  graph: string;
  found: boolean;
  step: number | null;
  steps: number;
  findings: HuntedFinding[];
  unrepeated: string[];
}

/** The report of a hunt: each origin, the first cause first. Paths in it are relative to `absolute`'s folder. */
export function reportOfHunt(hunted: Hunted, absolute: (path: string) => string): NanReport {
  const shown = hunted.findings.filter((f) => f.kind !== "masked");
  const findings = shown.length > 0 ? shown : hunted.findings;
  const calls = ({ through }: { through?: HuntedCall[] }) =>
    through?.length && {
      through: through.map(({ file, line }) => ({ path: absolute(file), line })),
    };
  const place = (p: HuntedPlace): Place => ({
    name: p.value,
    ...(p.op && { op: p.op }),
    ...(p.file && { path: absolute(p.file) }),
    ...(p.line && { line: p.line }),
    ...calls(p),
  });
  const links = findings.map((f): Link => {
    const path = f.file ? absolute(f.file) : undefined;
    const count = f.own ?? f.count;
    return {
      kind: f.given ? "given" : "origin",
      name: f.value,
      type: f.type,
      text: f.message,
      ...(f.op && { op: f.op }),
      ...(f.graph && { graph: f.graph }),
      ...(f.statement && { statement: f.statement }),
      ...(f.backward && { backward: f.backward }),
      ...(path && { source: { path, name: path.replace(/^.*[\\/]/, "") } }),
      ...(f.line && { line: f.line }),
      ...calls(f),
      bad: f.bad,
      ...(count && { count, born: count, nan: f.bad === "inf" ? 0 : count }),
      ...(f.size && { size: f.size }),
      ...(f.explained && { explained: f.explained }),
      ...(f.caused && { caused: f.caused }),
      ...(f.rules && { rules: f.rules }),
      ...(f.elements && { elements: f.elements }),
      ...notesOf(f),
      way: f.chain.slice(1).map(place),
      ...(f.before && { before: { ...place(f.before), text: lossOf(f.before) } }),
    };
  });
  const told = links.map((link) => link.text);
  const text = [...told, ...hunted.unrepeated].join("\n");
  const known = links.length > 0 && hunted.findings[0]?.rules !== undefined;
  return {
    found: hunted.found || links.length > 0,
    text,
    links,
    separate: true,
    ...(!known && text && { summary: told[0] ?? text }),
  };
}

function notesOf({ module, causes = [], harm }: HuntedFinding): { notes?: string[] } {
  const notes = [module && `in ${module}`, ...causes, harm].filter((note) => !!note);
  return notes.length > 0 ? { notes: notes as string[] } : {};
}

function lossOf({ value, place, number, rule }: NonNullable<HuntedFinding["before"]>): string {
  const at = place.length > 0 ? `[${place.join(", ")}]` : "";
  return `${value}${at} = ${number}: ${rule}`;
}

/** What a hunt is of: the result that the first origin comes out as. */
export function resultOf(hunted: Hunted): string {
  const first = hunted.findings[0];
  return first?.output || first?.value || hunted.graph;
}

/** What a workspace has of a finding: in words, and of its tensor, as far as an op gives it. */
export interface Recorded {
  text: string;
  tensor: { op?: string; type?: string; nan?: number; count?: number };
}

const GIVEN = new Set(["input", "param", "state"]);

/** The report of a finding that a run left in a workspace, which has its statistics but no elements. */
export function reportOfFinding(finding: Finding, { text, tensor }: Recorded): NanReport {
  const path = finding.place ?? finding.file ?? undefined;
  const [head, ...rest] = text.trim().split("\n");
  const statement = rest.find((line) => /^ {2}\S.*=/.test(line))?.trim();
  const name = finding.value ?? "a value";
  return {
    found: true,
    text: rest.join("\n").trim(),
    summary: head || finding.message,
    separate: true,
    links: [
      {
        kind: GIVEN.has(tensor.op ?? "") ? "given" : "origin",
        name,
        type: "",
        ...tensor,
        text: finding.message,
        bad: /\bNaN\b/i.test(finding.message) ? "nan" : "inf",
        ...(path && { source: { path, name: path.replace(/^.*[\\/]/, "") } }),
        ...(finding.line && { line: finding.line }),
        ...(statement && { statement }),
      },
    ],
  };
}
