import { expect, test } from "vitest";
import type { Link, NanReport } from "../../shared/nan/messages";
import { causeOf, explainedBy, summarize } from "../../shared/nan/report";
import { pathOf } from "../../src/nan/path";

const link = (more: Partial<Link>): Link => ({
  kind: "propagated",
  name: "y",
  type: "f32[4]",
  memoryReference: "tensor:1",
  text: "",
  bad: "nan",
  count: 3,
  ...more,
});
const log = link({
  kind: "origin",
  name: "l",
  op: "log",
  line: 5,
  rules: [{ rule: "log of a negative number", elements: 3 }],
  source: { path: "/a/m.opg" },
});

function report(...links: Link[]): NanReport {
  return { found: true, text: "", links };
}

test("one sentence says why", () => {
  expect(summarize(report(log))).toBe(
    "3 NaNs of l were born in this op, log: log of a negative number.",
  );
  expect(summarize(report(link({ line: 9 }), log))).toBe(
    "3 NaNs of y come from l, the result of log, line 5: log of a negative number.",
  );
  const given = link({ kind: "given", name: "x" });
  expect(summarize(report(given))).toBe("x entered the run with them.");
  expect(summarize(report(link({ count: 1, bad: "inf" }), given))).toBe(
    "1 infinity of y comes from x, which entered the run with them.",
  );
  expect(summarize(report(link({}), log, given))).toContain("and 1 more place.");
  expect(summarize({ found: false, text: "d is finite", links: [] })).toBe("d is finite");
});

test("an origin that made its NaNs of another one's infinities follows from that", () => {
  const div = {
    name: "d",
    op: "div",
    bad: "inf",
    line: 9,
    rules: [{ rule: "division by 0", elements: 1 }],
  };
  const root = link({ kind: "origin", ...div });
  const mul = link({ kind: "origin", name: "m", op: "mul", line: 8, caused: ["b"] });
  const chain = report(mul, link({ name: "b" }), root);
  expect(causeOf(chain, mul)).toBe(root);
  expect(causeOf(chain, root)).toBeUndefined();
  expect(causeOf(report(mul, link({ kind: "given", name: "b" })), mul)).toBeUndefined();
  expect(summarize(chain)).toBe(
    "3 NaNs of m were born in this op, mul. It made them of infinities from d, the result of div, line 9: division by 0. Mend that first.",
  );
  expect(summarize(report(link({}), mul, root))).toBe(
    "3 NaNs of y come from d, the result of div, line 9: division by 0.",
  );
  const hunted = { ...root, way: [{ name: "m", op: "mul", line: 8 }] };
  const places = { ...report(hunted, mul), separate: true };
  expect(causeOf(places, mul)).toBe(hunted);
  expect(causeOf({ ...places, links: [root, mul] }, mul)).toBeUndefined();
  expect(summarize(places)).toBe("3 infinities of d were born in div, line 9: division by 0.");
});

test("a rule says of how many elements it tells", () => {
  expect(explainedBy(7, link({ born: 7, explained: 7 }))).toBe("7 of 7 elements born here.");
  expect(explainedBy(64, link({ born: 500, explained: 64 }))).toBe(
    "64 of 64 elements looked at, 500 born here.",
  );
});

test("the way begins where it began, and stays in one file", () => {
  const elsewhere = link({ name: "z", line: 2, source: { path: "/a/other.opg" } });
  const there = link({ name: "y", line: 9, source: { path: "/a/m.opg" } });
  expect(pathOf(report(there, elsewhere, log), "/a/m.opg")).toEqual({
    path: "/a/m.opg",
    lines: [5, 9],
    calls: [],
    values: ["l", "y"],
  });
  // Calls of graphs in which it happened are part of it: each once, in this file.
  const call = { path: "/a/m.opg", line: 20 };
  const inside = link({ ...log, through: [call, { path: "/a/other.opg", line: 3 }] });
  expect(pathOf(report(there, inside, { ...inside, line: 6 }), "/a/m.opg")?.calls).toEqual([20]);
  expect(pathOf({ found: false, text: "", links: [] }, "/a/m.opg")).toBeUndefined();
});
