import { expect, it } from "vitest";
import type { Answer, PageMessage, PlotLine, Schema, Table } from "../../shared/query/messages";
import {
  alignLines,
  dropNonPositive,
  needsLogScale,
  separate,
  tick,
  unitOf,
} from "../../webview/query/chartData";
import { completePlot, completeSql, sources, tokens } from "../../webview/query/completion";
import { figure, formatCell, isNs, milliseconds } from "../../webview/query/format";
import { QueryHistory } from "../../webview/query/history";
import { Pages } from "../../webview/query/pages";
import { plotColumns, requestPlot } from "../../webview/query/plotting";
import { Rpc } from "../../webview/query/rpc";
import { MOST_PIXELS, pagesOf, scrollTo, windowOf } from "../../webview/query/windowing";

const table = (name: string, columns: string[], kind: "table" | "view" = "table"): Table => ({
  name,
  kind,
  what: `what ${name} is`,
  columns: columns.map((column) => ({ name: column, type: "INTEGER", what: `its ${column}` })),
});
const SCHEMA: Schema = {
  tables: [
    table("ops", ["run", "op", "site", "line"]),
    table("stats", ["run", "step", "op", "absmax", "mean"]),
    table("first_bad", ["run", "step", "verdict"], "view"),
  ],
  names: { op: ["conv2d", "relu"], value: ["y", "loss"], graph: ["main"], metric: ["loss"] },
  runs: ["3f2a9c01", "77aea072"],
  titles: {},
  recorded: ["metrics", "stats", "executions"],
  examples: [],
};

/** The labels that are offered at the bar of a text. */
function offered(text: string, complete = completeSql): string[] | undefined {
  const at = text.indexOf("|");
  const found = complete(text.replace("|", ""), at, SCHEMA);
  return found?.options
    .toSorted((a, b) => (b.boost ?? 0) - (a.boost ?? 0))
    .map((option) => option.label);
}

// --- SQL ---

it.each([
  ["select * from |", ["first_bad", "ops", "stats"]],
  ["select * from o|", ["first_bad", "ops", "stats"]],
  ["select * from ops as o join |", ["first_bad", "ops", "stats"]],
  ["select * from ops, |", ["first_bad", "ops", "stats"]],
  ["select o.| from ops as o", ["run", "op", "site", "line"]],
  ["select o.si| from ops o", ["run", "op", "site", "line"]],
  ['select "s".| from stats "s"', ["run", "step", "op", "absmax", "mean"]],
  ["select stats.| from stats", ["run", "step", "op", "absmax", "mean"]],
])("offers just what can stand at %s", (text, labels) => {
  expect(offered(text)).toEqual(labels);
});

it("offers the columns of the tables that are named, before anything else", () => {
  expect(offered("select | from stats")?.slice(0, 5)).toEqual([
    "run",
    "step",
    "op",
    "absmax",
    "mean",
  ]);
  const both = offered("select | from stats as s join ops using (op)") ?? [];
  expect(both.slice(0, 7)).toEqual(["run", "step", "op", "absmax", "mean", "site", "line"]);
  expect(both).toContain("s");
  expect(both.filter((label) => label === "op")).toHaveLength(1);
});

it("offers tables, functions and keywords where no table is named yet", () => {
  expect(offered("sel|")).toEqual(expect.arrayContaining(["select", "count", "stats"]));
});

it.each(["select 'a | b' from ops", "-- a comm|ent", "select /* | */ 1", "select 12|"])(
  "offers nothing in %s",
  (text) => expect(offered(text)).toBeUndefined(),
);

it("reads tokens without comments, and tables with their aliases", () => {
  expect(tokens("a -- b\n'c''d' \"e f\" 1.5").map((t) => t.text)).toEqual([
    "a",
    "'c''d'",
    '"e f"',
    "1.5",
  ]);
  const found = sources(
    "select 1 from stats s, ops where s.op in (select op from first_bad as b)",
    SCHEMA,
  );
  expect([...found].map(([alias, t]) => `${alias}=${t.name}`)).toEqual([
    "s=stats",
    "ops=ops",
    "b=first_bad",
  ]);
});

// --- plots ---

it.each([
  ["|", ["stats", "metrics", "executions"]],
  ["st|", ["stats", "metrics", "executions"]],
  ["metrics.|", ["loss", "value"]],
  ["executions.|", ["seconds"]],
  ["stats.mean wh|", ["where"]],
  ["stats.mean where |", ["op", "value", "run", "step", "graph"]],
  ["stats.mean where op=|", ["conv2d", "relu"]],
  ["stats.mean where op=conv2d|", ["conv2d", "relu"]],
  ["stats.mean where op=relu, run=|", ["last", "*", "3f2a9c01", "77aea072"]],
  ["stats.mean where step=|", []],
])("completes the plot %s", (text, labels) => {
  expect(offered(text, completePlot)).toEqual(labels);
});

it("completes alternatives of a value", () => {
  const text = "stats.mean where op=conv2d|re";
  expect(completePlot(text, text.length, SCHEMA)).toMatchObject({ from: text.length - 2 });
});

// --- fields ---

it.each([
  [null, "NULL", "null"],
  [3, "3", "number"],
  [0.1 + 0.2, "0.3", "number"],
  [1e300, "1e+300", "number"],
  ["a\nb", "a ⏎ b", "text"],
  [{ int: "9007199254740993" }, "9007199254740993", "number"],
  [{ float: "-inf" }, "-inf", "number"],
  [{ bytes: 4096 }, "4,096 bytes", "bytes"],
  [{ text: "long", length: 9000 }, "long…", "text"],
] as const)("shows %j as %s", (cell, text, kind) => {
  expect(formatCell(cell)).toMatchObject({ text, kind });
});

it("shows times in ns as ms on wish, and only them", () => {
  expect([isNs("total_ns"), isNs("ns_total")]).toEqual([true, false]);
  const times = [0, 115, 20_500, 1_234_567, 2e9, -20_500];
  expect(times.map(milliseconds)).toEqual([
    "0.000",
    "0.000115",
    "0.0205",
    "1.235",
    "2000.000",
    "-0.0205",
  ]);
  expect(formatCell(1_000_000, true).text).toBe("1.000");
  expect(figure(1 / 3)).toBe("0.333333333");
});

// --- windows ---

it("draws what is seen and a little more", () => {
  const window = windowOf({ rows: 1000, rowHeight: 20, viewport: 200, top: 4000 });
  expect(window).toEqual({ height: 20_000, first: 192, count: 27, offset: 3840 });
  expect(windowOf({ rows: 3, rowHeight: 20, viewport: 200, top: 0 })).toMatchObject({
    first: 0,
    count: 3,
  });
  expect(windowOf({ rows: 0, rowHeight: 20, viewport: 200, top: 0 }).count).toBe(0);
});

it.each([1_000_000, 10_000_000])("reaches every row of %i, however tall", (rows) => {
  const common = { rows, rowHeight: 24, viewport: 480 };
  const { height } = windowOf({ ...common, top: 0 });
  expect(height).toBeLessThanOrEqual(MOST_PIXELS);
  const last = windowOf({ ...common, top: height - 480 });
  expect(last.first + last.count).toBe(rows);
  const bottom = last.offset + last.count * 24;
  expect(Math.abs(bottom - height)).toBeLessThan(1);
  for (const row of [0, 17, rows / 2, rows - 1]) {
    const top = scrollTo(row, { ...common, top: 12_345 });
    const window = windowOf({ ...common, top });
    const y = window.offset + (row - window.first) * 24 - top;
    expect(y).toBeGreaterThanOrEqual(-1);
    expect(y).toBeLessThanOrEqual(480 - 24 + 1);
  }
});

it("stays where it is while the row is seen already", () => {
  expect(scrollTo(12, { rows: 100, rowHeight: 20, viewport: 200, top: 150 })).toBe(150);
});

it("asks for the pages that are seen, once, and forgets old orders", async () => {
  expect(pagesOf(190, 20, 200)).toEqual([0, 1]);
  const asked: [number, unknown][] = [];
  let arrived = 0;
  const fetch = async (offset: number, limit: number, sort: unknown): Promise<Answer> => {
    asked.push([offset, sort]);
    const rows = Array.from({ length: limit }, (_, k) => [offset + k]);
    return { rows } as unknown as Answer;
  };
  const pages = new Pages(
    fetch,
    () => arrived++,
    () => expect.fail(),
  );
  pages.begin(Array.from({ length: 200 }, (_, k) => [k]));
  pages.want(150, 100, 1000);
  pages.want(150, 100, 1000);
  expect(asked).toEqual([[200, undefined]]);
  await Promise.resolve();
  await Promise.resolve();
  expect([pages.row(10), pages.row(399), pages.row(400), arrived]).toEqual([
    [10],
    [399],
    undefined,
    1,
  ]);
  const sort = { column: 1, descending: true };
  pages.order(sort);
  expect(pages.row(10)).toBeUndefined();
  pages.want(0, 10, 1000);
  expect(asked[1]).toEqual([0, sort]);
});

// --- charts ---

const line = (xs: number[], ys: (number | null)[], label = "a"): PlotLine => ({
  label,
  site: "",
  run: "",
  points: xs.length,
  xs,
  ys,
});

it("puts lines over one list of xs: null is a gap, undefined goes on", () => {
  const data = alignLines([line([0, 1, 3], [1, null, 3]), line([1, 2], [5, 6])]);
  expect(data).toEqual([
    [0, 1, 2, 3],
    [1, null, undefined, 3],
    [undefined, 5, 6, undefined],
  ]);
});

it("spreads points of one step to its right", () => {
  expect(separate([0, 0, 1, 2, 2, 2, 2])).toEqual([0, 0.5, 1, 2, 2.25, 2.5, 2.75]);
});

it("chooses a logarithmic scale for positive figures far apart", () => {
  expect(needsLogScale([line([0, 1], [1e-3, 5])])).toBe(true);
  expect(needsLogScale([line([0, 1], [1, 5])])).toBe(false);
  expect(needsLogScale([line([0, 1], [-1, 5e6])])).toBe(false);
  expect(
    dropNonPositive([
      [0, 1, 2],
      [0, -1, 2],
    ]),
  ).toEqual([
    [0, 1, 2],
    [null, null, 2],
  ]);
});

it("names units and figures shortly", () => {
  expect(unitOf({ unit: "seconds", lines: [line([0], [2e-5])] }).label).toBe("µs");
  expect(unitOf({ unit: "seconds", lines: [line([0], [0.2])] })).toEqual({
    factor: 1e3,
    label: "ms",
  });
  expect([tick(0), tick(1500), tick(2e6), tick(1.5e-5), tick(null)]).toEqual([
    "0",
    "1500",
    "2e6",
    "1.5e-5",
    "",
  ]);
});

it.each([
  [["step", "name", "value"], ["number", "text", "number"], { x: 0, ys: [2], by: 1 }],
  [["step", "mean", "std"], ["number", "number", "number"], { x: 0, ys: [1, 2] }],
  [["run", "step", "line", "absmax"], ["number", "number", "number", "number"], { x: 1, ys: [3] }],
  [["step", "stream", "busy_ns"], ["number", "number", "number"], { x: 0, ys: [2], by: 1 }],
  [["a", "b"], ["text", "number"], undefined],
])("draws %j by what it knows of the columns", (columns, kinds, expected) => {
  expect(plotColumns({ columns, kinds })).toEqual(expected);
});

it("goes through what was asked before, of one kind at a time", () => {
  const asked = new QueryHistory();
  asked.entries = [
    { mode: "sql", text: "select 1" },
    { mode: "plot", text: "metrics.loss" },
    { mode: "sql", text: "select 2\nfrom runs" },
  ];
  const all = [1, 1, 1, -1, -1].map((step) => asked.recall("sql", step));
  expect(all).toEqual(["select 1", "select 2\nfrom runs", undefined, "select 1", undefined]);
  asked.add({ mode: "sql", text: "select 2\nfrom runs" }); // again: it is the last now
  expect(asked.recall("sql", 1)).toBe("select 2\nfrom runs");
  const chosen: string[] = [];
  const items = asked.items(({ text }) => chosen.push(text));
  expect(items.map((item) => [item.label, item.detail])).toEqual([
    ["select 2", "from runs"],
    ["select 1", undefined],
    ["metrics.loss", undefined],
  ]);
  items[2]?.run();
  expect(chosen).toEqual(["metrics.loss"]);
});

it("draws the plot that was asked for last, also when an earlier one is answered after it", async () => {
  const posted: PageMessage[] = [];
  const rpc = new Rpc((message) => posted.push(message));
  const plots = ["stats.mean", "stats.mean where op=log"].map((what) =>
    requestPlot(rpc, "runs.db", what, 300, undefined),
  );
  for (const message of posted.toReversed()) {
    if (message.type === "request")
      rpc.receive({ type: "response", id: message.id, result: message.params.what });
  }
  expect(await Promise.all(plots)).toEqual([undefined, "stats.mean where op=log"]);
});
