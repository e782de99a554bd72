import { expect, it } from "vitest";
import {
  ago,
  byteSize,
  metricDescription,
  runDescription,
  runIcon,
  runTooltip,
  slowDescription,
  slowLabel,
  sparkline,
  statusDescription,
  stepDescription,
  stepSpans,
  tensorDescription,
} from "../../src/workspace/format";
import { idOf, type Node } from "../../src/workspace/nodes";
import { questionAbout, questionAboutStep } from "../../src/workspace/questions";
import type { Run, StoredTensor, WorkspaceStatus } from "../../src/workspace/requests";

const NOW = Date.parse("2026-01-02T03:04:05Z");
const RUN: Run = {
  id: 3,
  key: "3f2a9c01",
  began: "2026-01-02T02:59:05Z",
  ended: null,
  seconds: 1.43,
  status: "done",
  underWay: false,
  error: null,
  file: "models/resnet.opg",
  place: null,
  graph: "main",
  device: "cpu",
  streams: 4,
  alloc: "reuse",
  fill: "none",
  sync: "none",
  threads: null,
  seed: 0,
  steps: 1200,
  selection: "all",
  every: 1,
  arena_bytes: 2048,
  param_bytes: 40,
  trace: null,
  version: "0.1.0",
  host: "h",
  pid: 1,
  kernels: null,
  findings: 0,
};

it("says what a run was in one line", () => {
  const text = "1,200 steps · 1.43 s · 5 min ago · resnet.opg · cpu · 3f2a9c01";
  expect(runDescription({ ...RUN, findings: 0 }, NOW)).toBe(text);
  const killed = { ...RUN, status: "killed", seconds: null, findings: 2 } as const;
  expect(runDescription(killed, NOW)).toMatch(/^killed · 2 findings · 1,200 steps · 5 min ago/);
  expect(runTooltip({ ...RUN, error: "a | b" })).toContain("| memory | 2 KiB temporary");
});

it("shows what a run says as it is: none of it is Markdown", () => {
  const picture = "![x](https://elsewhere/a.png)";
  const lines = ["```", picture, "````", picture].join("\n");
  const shown = runTooltip({ ...RUN, graph: `main\n\n${picture}`, device: picture, error: lines });
  expect(shown).toContain(`\n\n\`\`\`\`\`\n${lines}\n\`\`\`\`\``);
  const before = shown.slice(0, shown.indexOf("`````"));
  expect(before).toContain("elsewhere");
  expect(before).not.toContain("![");
  expect(before.split("\n").filter((line) => line.includes("elsewhere"))).toHaveLength(2);
  expect(runTooltip({ ...RUN, status: picture as Run["status"] })).not.toContain("![");
});

it.each([
  ["done", 0, "pass"],
  ["done", 2, "warning"],
  ["running", 0, "loading~spin"],
  ["failed", 1, "error"],
  ["interrupted", 0, "debug-stop"],
  ["killed", 0, "circle-slash"],
] as const)("shows a run that is %s with %i findings as %s", (status, findings, name) => {
  expect(runIcon({ status, findings }).name).toBe(name);
});

it.each([
  [{ kind: "workspace", runs: 1, bytes: 2048, running: 0 }, "1 run · 2 KiB · sub"],
  [{ kind: "workspace", runs: 2, bytes: 3, running: 1 }, "1 running · 2 runs · sub"],
  [{ kind: "older" }, "older version · sub"],
  [{ kind: "locked" }, "locked · sub"],
])("says of a file %j", (told, text) => {
  expect(
    statusDescription({ path: "x", message: "", hint: "", ...told } as WorkspaceStatus, "sub"),
  ).toBe(text);
});

it("parts millions of steps into levels of a hundred", () => {
  expect(stepSpans(0, 99)).toEqual([]);
  expect(stepSpans(0, 250)).toEqual([
    { first: 0, last: 99 },
    { first: 100, last: 199 },
    { first: 200, last: 250 },
  ]);
  let [first, last] = [0, 4_999_999];
  for (let level = 0; level < 5; level++) {
    const spans = stepSpans(first, last);
    expect(spans.length).toBeLessThanOrEqual(100);
    const found = spans.find((span) => span.first <= 3_141_592 && 3_141_592 <= span.last);
    if (!found) {
      break;
    }
    [first, last] = [found.first, found.last];
  }
  expect([first, last]).toEqual([3_141_500, 3_141_599]);
});

it("says what a step, a tensor, an op was", () => {
  const step = { step: 3, ns: 12_000_000, metrics: { loss: 0.312345678, seconds: 0.012 }, odd: 2 };
  expect(stepDescription(step)).toBe("loss 0.31235 · 12 ms · NaN or inf in 2 tensors");
  const tensor = { type: "f32[6, 3]", step: 29, nbytes: 72 } as StoredTensor;
  expect(tensorDescription(tensor)).toBe("f32[6, 3] · after step 29 · 72 bytes");
  expect(tensorDescription({ ...tensor, step: -1 })).toContain("before the first step");
  const op = { total_ns: 25_000_000, executions: 200 } as never;
  expect(slowDescription(op, 100_000_000)).toBe("25 ms · 25 % · 200 times");
  expect([
    slowLabel({ statement: "h = linear(a, fc.w)", site: "main:3" } as never),
    slowLabel({ statement: "a, b = split(x, sizes=[1, 2])", site: "main:4" } as never),
    slowLabel({ statement: null, site: "main:5" } as never),
  ]).toEqual(["h = linear", "a, b = split", "main:5"]);
  const metric = { name: "seconds", step: 4_000, value: 0.00037, curve: [0.00037] };
  expect([
    metricDescription(metric),
    metricDescription({ ...metric, name: "loss", value: null, curve: [2, 1, null] }),
    metricDescription({ ...metric, name: "loss", value: "inf", curve: [] }),
  ]).toEqual(["370 µs", "NaN  █▁×", "inf"]);
});

it("draws a curve as bars between its least and its greatest value", () => {
  expect(sparkline([8, 7, 6, 5, 4, 3, 2, 1])).toBe("█▇▆▅▄▃▂▁");
  expect(sparkline([1, 1, 1])).toBe("▁▁▁");
  expect(sparkline([3])).toBe("");
  expect(sparkline(["inf", null])).toBe("");
});

it("writes sizes and ages in handy units", () => {
  expect([byteSize(1), byteSize(1536), byteSize(5 * 2 ** 30)]).toEqual([
    "1 byte",
    "1.5 KiB",
    "5 GiB",
  ]);
  expect([ago("2026-01-02T03:04:00Z", NOW), ago("2026-01-01T01:04:00Z", NOW)]).toEqual([
    "just now",
    "1 day ago",
  ]);
  expect(ago("nonsense", NOW)).toBe("nonsense");
});

it("names nodes so that two never share a name", () => {
  const of = { path: "a.db", run: RUN };
  const nodes: Node[] = [
    { kind: "run", ...of },
    { kind: "part", part: "steps", count: 3, ...of },
    { kind: "part", part: "tensors", count: 3, ...of },
    { kind: "steps", first: 0, last: 99, ...of },
    { kind: "steps", first: 100, last: 199, ...of },
    { kind: "step", step: { step: 0, ns: 1, metrics: {}, odd: 0 }, ...of },
    { kind: "program", ...of },
    { kind: "more", path: "a.db", what: "run", left: 3 },
  ];
  expect(new Set(nodes.map(idOf)).size).toBe(nodes.length);
});

it("asks first for what a query is opened for: a narrow view shows no more", () => {
  const columns = (sql: string) => /^select (.*?)\sfrom /s.exec(sql)?.[1]?.split(/,\s+/) ?? [];
  const slowest = columns(questionAbout("slowest", 3));
  expect(slowest).toEqual(["statement", "total_ns", "mean_ns", "executions", "file", "line"]);
  expect(columns(questionAboutStep(3, 7))[1]).toBe("s.nan");
  expect(columns(questionAbout(undefined, 3)).slice(0, 3)).toEqual(["step", "value", "mean"]);
});
