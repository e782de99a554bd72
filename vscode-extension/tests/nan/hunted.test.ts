import { describe, expect, it } from "vitest";
import { problemOf, summarize } from "../../shared/nan/report";
import { debugThere } from "../../src/nan/again";
import { type Hunted, reportOfFinding, reportOfHunt, resultOf } from "../../src/nan/reports";
import { isNanStop, oddResult } from "../../src/nan/stops";

const LOG = {
  kind: "origin",
  bad: "inf",
  message: "infinity born in log lg",
  value: "lg",
  type: "f32[4, 5]",
  op: "log",
  given: null,
  graph: "information",
  file: "m.opg",
  line: 11,
  through: [{ file: "m.opg", line: 5 }],
  statement: "lg = log(p)",
  output: "mean",
  chain: [
    { value: "lg", op: "log", file: "m.opg", line: 11 },
    { value: "h", op: "mul", file: "m.opg", line: 12 },
    { value: "mean", op: "mean", file: "m.opg", line: 6 },
  ],
  before: {
    value: "p",
    op: "softmax",
    file: "m.opg",
    line: 4,
    place: [1, 3],
    number: 0,
    rule: "underflow of f32 to 0",
  },
  count: 7,
  own: 7,
  rules: [{ rule: "log of 0", elements: 7 }],
  elements: [],
};
const MUL = {
  ...LOG,
  bad: "nan",
  message: "NaN born in mul h",
  value: "h",
  op: "mul",
  line: 12,
  chain: LOG.chain.slice(1),
};

function hunted(...findings: Hunted["findings"]): Hunted {
  return { graph: "main", found: true, step: 0, steps: 1, findings, unrepeated: [] };
}

const at = (path: string) => `/a/${path}`;

describe("the report of a hunt", () => {
  it("has each origin with its way, the first cause first", () => {
    const report = reportOfHunt(hunted(LOG, MUL), at);
    expect(report.links.map((l) => [l.name, l.line, l.source?.path, l.nan])).toEqual([
      ["lg", 11, "/a/m.opg", 0],
      ["h", 12, "/a/m.opg", 7],
    ]);
    expect(report.links[0]?.way).toEqual([
      { name: "h", op: "mul", path: "/a/m.opg", line: 12 },
      { name: "mean", op: "mean", path: "/a/m.opg", line: 6 },
    ]);
    expect(report.links[0]?.through).toEqual([{ path: "/a/m.opg", line: 5 }]);
    expect(report.links[0]?.before?.text).toBe("p[1, 3] = 0: underflow of f32 to 0");
    expect(summarize(report)).toBe(
      "7 infinities of lg were born in log, line 11: log of 0; and 1 more place.",
    );
    expect(resultOf(hunted(LOG))).toBe("mean");
  });

  it("of a script says in which module, and what made it so", () => {
    const script = { ...LOG, graph: "", module: "blocks.0", causes: ["it grew"], harm: "" };
    expect(reportOfHunt(hunted(script), at).links[0]?.notes).toEqual(["in blocks.0", "it grew"]);
    expect(reportOfHunt(hunted(LOG), at).links[0]).not.toHaveProperty("notes");
  });

  it("leaves out what no output shows, unless there is nothing else", () => {
    const masked = { ...MUL, kind: "masked" };
    expect(reportOfHunt(hunted(LOG, masked), at).links).toHaveLength(1);
    expect(reportOfHunt(hunted(masked), at).links).toHaveLength(1);
  });

  it("says in words what has no elements", () => {
    const left = { ...LOG, message: "gather never wrote 3 of 4 elements of y", rules: undefined };
    expect(summarize(reportOfHunt(hunted(left), at))).toBe(left.message);
    const race = { ...hunted(), unrepeated: ["y, the result of mul, had NaNs at full speed"] };
    expect(summarize(reportOfHunt(race, at))).toContain("at full speed");
  });
});

it("a recorded finding is told with its statement and figures", () => {
  const finding = {
    id: 3,
    run: "abc",
    step: 0,
    kind: "origin",
    value: "l",
    file: "m.opg",
    line: 8,
    message: "log gives l: 2 of 2 elements are NaN",
    place: "/a/m.opg",
  };
  const text = `${finding.message}\n\nm.opg:8\nrun abc\n\n  l = log(x)\n\nop log (inner.l)\n`;
  const tensor = { op: "log", type: "f32[4]", nan: 0, count: 2 };
  const report = reportOfFinding(finding, { text, tensor });
  expect(summarize(report)).toBe(finding.message);
  expect(report.links[0]).toMatchObject({
    name: "l",
    kind: "origin",
    statement: "l = log(x)",
    line: 8,
    bad: "nan",
    ...tensor,
  });
  const given = reportOfFinding(finding, { text, tensor: { op: "input" } });
  expect(given.links[0]?.kind).toBe("given");
  expect(report.text).toContain("op log");
});

it("NaNs and infinities are counted apart in Problems", () => {
  const [log, mul] = reportOfHunt(hunted(LOG, MUL), at).links;
  expect(log && problemOf(log)).toBe("7 infinities of lg are born here: log of 0");
  expect(mul && problemOf({ ...mul, count: 7, born: 1, nan: 1 })).toBe(
    "1 NaN of h is born here: log of 0",
  );
  expect(mul && problemOf({ ...mul, born: undefined, nan: 5 })).toContain(
    "5 NaNs and 2 infinities",
  );
});

it("a session begins at the finding, with what the run was given", () => {
  const config = {
    type: "opstep",
    request: "launch",
    name: "m.opg: main",
    program: "/a/m.opg",
    symbols: { N: 4 },
    noDebug: true,
    stopOnEntry: true,
  };
  const there = debugThere({ config }, "h", 12);
  expect(there).toMatchObject({
    symbols: { N: 4 },
    stopOnEntry: false,
    hunt: { value: "h", line: 12 },
    name: "m.opg: main at h",
  });
  expect(there.noDebug).toBeUndefined();
  expect(debugThere({ config: there }, "lg", 11).name).toBe("m.opg: main at lg");
});

it("stops are told apart by what they say", () => {
  expect(isNanStop({ reason: "exception", text: "h, the result of mul: 7 NaN of 20" })).toBe(true);
  expect(isNanStop({ reason: "exception", text: "assert failed: banana" })).toBe(false);
  const end =
    "The graph has returned; mean has 1 NaN of 1 elements; x has 2 infinite of 4 elements";
  expect(oddResult({ reason: "pause", text: end })).toBe("mean");
  expect(oddResult({ reason: "pause", text: "The graph has returned" })).toBeUndefined();
});
