/** What could stand at the cursor: names of the workspace's schema in SQL, and the words of plots. */

import type { Schema, Table } from "../../shared/query/messages";

export interface Suggestion {
  label: string;
  kind: "table" | "view" | "column" | "keyword" | "function" | "value" | "alias";
  detail?: string;
  info?: string;
  /** What is written, where it is not the label. */
  apply?: string;
  /** Better ones stand higher: 0 is usual. */
  boost?: number;
}

interface Suggestions {
  /** Where the word that is completed begins. */
  from: number;
  options: Suggestion[];
}

/** SQLite's words, as far as questions need them. */
export const KEYWORDS =
  "select from where group by order having limit offset join left cross inner on using as and or not in is null between like glob case when then else end distinct union all except intersect with recursive asc desc over partition values exists cast collate escape nulls first last explain query plan".split(
    " ",
  );
const FUNCTIONS: Record<string, string> = {
  count: "count(x): how many are not null; count(*): rows",
  sum: "sum(x)",
  avg: "avg(x): arithmetic mean",
  min: "min(x), min(a, b, …)",
  max: "max(x), max(a, b, …)",
  total: "total(x): sum, 0.0 of none",
  group_concat: "group_concat(x, separator)",
  abs: "abs(x)",
  round: "round(x, digits)",
  coalesce: "coalesce(a, b, …): the first that is not null",
  ifnull: "ifnull(a, b)",
  nullif: "nullif(a, b)",
  iif: "iif(condition, then, else)",
  length: "length(x)",
  substr: "substr(text, start, length)",
  instr: "instr(text, part)",
  replace: "replace(text, old, new)",
  printf: "printf(format, …)",
  json_each: "json_each(list): a row an element: key, value, type",
  json_extract: "json_extract(json, path)",
  row_number: "row_number() over (…)",
  lag: "lag(x) over (order by …)",
  lead: "lead(x) over (order by …)",
  exp: "exp(x)",
  log: "log(x): to base 10",
  log2: "log2(x)",
  ln: "ln(x)",
  sqrt: "sqrt(x)",
  pow: "pow(x, y)",
};
const WORD = /[\w$]*$/;
/** Names, numbers, strings, quoted names and comments as one token each; all else by character. */
const TOKEN =
  /--[^\n]*|\/\*[\s\S]*?(?:\*\/|$)|'(?:[^']|'')*(?:'|$)|"(?:[^"]|"")*(?:"|$)|[A-Za-z_]\w*|\d[\w.]*|\S/g;

interface Token {
  text: string;
  start: number;
  end: number;
}

/** The tokens of a text, without comments. */
export function tokens(text: string): Token[] {
  const found: Token[] = [];
  for (const match of text.matchAll(TOKEN)) {
    const token = match[0];
    if (!token.startsWith("--") && !token.startsWith("/*")) {
      found.push({ text: token, start: match.index, end: match.index + token.length });
    }
  }
  return found;
}

/** The tables that a statement names behind FROM and JOIN, by alias; a CTE has no table of the schema. */
export function sources(text: string, schema: Schema): Map<string, Table> {
  const found = new Map<string, Table>();
  const all = tokens(text);
  for (const [k, token] of all.entries()) {
    const word = token.text.toLowerCase();
    const before = all[k - 1]?.text.toLowerCase();
    const begins =
      before === "from" || before === "join" || (before === "," && inTableList(all, k));
    const table = begins
      ? schema.tables.find((t) => t.name.toLowerCase() === unquote(word))
      : undefined;
    if (table) {
      const next = all[k + 1]?.text.toLowerCase();
      const alias = next === "as" ? all[k + 2]?.text : next;
      const named = alias && /^["\w]/.test(alias) && !KEYWORDS.includes(alias.toLowerCase());
      found.set(named ? unquote(alias) : table.name, table);
    }
  }
  return found;
}

/** Whether a comma stands in a list of tables: FROM comes before it, and no other clause between. */
function inTableList(all: Token[], k: number): boolean {
  for (let i = k - 1; i >= 0; i--) {
    const word = all[i]?.text.toLowerCase() ?? "";
    if (word === "from") {
      return true;
    }
    if (["select", "where", "group", "order", "on", "(", ")", "using", "limit"].includes(word)) {
      return false;
    }
  }
  return false;
}

/** What could stand at an offset of an SQL text; undefined in strings and comments. */
export function completeSql(text: string, at: number, schema: Schema): Suggestions | undefined {
  const before = text.slice(0, at);
  if (inStringOrComment(before)) {
    return undefined;
  }
  const word = WORD.exec(before)?.[0] ?? "";
  const from = at - word.length;
  const tables = sources(text, schema);
  const dot = /(?:"([^"]+)"|(\w+))\.$/.exec(before.slice(0, from));
  if (dot) {
    const name = dot[1] ?? dot[2] ?? "";
    const table = tables.get(name) ?? schema.tables.find((t) => t.name === name);
    return table ? { from, options: columnsOf(table, 0) } : undefined;
  }
  const last = tokens(before.slice(0, from)).at(-1)?.text.toLowerCase();
  const named = tokens(before.slice(0, from));
  if (last === "from" || last === "join" || (last === "," && inTableList(named, named.length))) {
    return { from, options: tableNames(schema) };
  }
  if (/^\d/.test(word)) {
    return undefined;
  }
  const options: Suggestion[] = [];
  const seen = new Set<string>();
  for (const [alias, table] of tables) {
    if (alias !== table.name) {
      options.push({ label: alias, kind: "alias", detail: table.name, boost: 1 });
    }
    for (const column of columnsOf(table, 2)) {
      if (!seen.has(column.label)) {
        seen.add(column.label);
        options.push(column);
      }
    }
  }
  if (tables.size === 0) {
    options.push(...tableNames(schema).map((t) => ({ ...t, boost: -1 })));
  }
  for (const [label, info] of Object.entries(FUNCTIONS)) {
    options.push({ label, kind: "function", info, apply: `${label}(`, boost: -1 });
  }
  options.push(...KEYWORDS.map((label) => ({ label, kind: "keyword" as const, boost: -2 })));
  return { from, options };
}

function tableNames(schema: Schema): Suggestion[] {
  return schema.tables.map((table) => ({
    label: table.name,
    kind: table.kind,
    detail: table.kind,
    info: table.what,
    boost: table.kind === "view" ? 1 : 0,
  }));
}

function columnsOf(table: Table, boost: number): Suggestion[] {
  return table.columns.map((column) => ({
    label: column.name,
    kind: "column",
    detail: column.type ? `${table.name}  ${column.type}` : table.name,
    info: column.what,
    apply: /^[A-Za-z_]\w*$/.test(column.name) ? undefined : `"${column.name}"`,
    boost,
  }));
}

/** Whether a text ends within a string or a comment. */
function inStringOrComment(before: string): boolean {
  const last = [...before.matchAll(TOKEN)].at(-1)?.[0] ?? "";
  if (last.startsWith("--")) {
    return !before.endsWith("\n");
  }
  if (last.startsWith("/*")) {
    return !last.endsWith("*/") || last.length < 4;
  }
  return last.startsWith("'") && (last.length === 1 || !last.endsWith("'"));
}

function unquote(name: string): string {
  return name.startsWith('"') ? name.replaceAll('"', "") : name;
}

// --- plots ---

/** Statistics of tensors, each with what it is. */
export const STATS: Record<string, string> = {
  absmax: "greatest magnitude",
  mean: "arithmetic mean",
  std: "standard deviation",
  min: "least",
  max: "greatest",
  l2: "square root of the sum of squares",
  nan: "NaNs",
  posinf: "+inf",
  neginf: "-inf",
  zero: "zeros",
  subnormal: "subnormal numbers",
  unwritten: "elements that were never written",
  count: "elements",
};
const KEYS: Record<string, Record<string, string>> = {
  stats: {
    op: "name or site of the op",
    value: "name of the tensor",
    run: "a key, last, or * for all",
    step: "4 or 0..99",
    graph: "graph that holds the statement",
  },
  executions: {
    op: "name or site of the op",
    run: "a key, last, or * for all",
    step: "4 or 0..99",
    graph: "graph that holds the statement",
    stream: "number of the stream",
  },
  metrics: { name: "of the metric", run: "a key, last, or * for all", step: "4 or 0..99" },
};

/** What could stand at an offset of a plot: `stats.absmax where op=conv2d, run=*`. */
export function completePlot(text: string, at: number, schema: Schema): Suggestions | undefined {
  const before = text.slice(0, at);
  const head = /^\s*(\w*)$/.exec(before);
  if (head) {
    const options: Suggestion[] = [
      { label: "stats", kind: "table", detail: "statistics of tensors", apply: "stats." },
      { label: "metrics", kind: "table", detail: "scalar outputs", apply: "metrics." },
      { label: "executions", kind: "table", detail: "times of ops", apply: "executions.seconds" },
    ];
    return { from: at - (head[1]?.length ?? 0), options };
  }
  const figure = /^\s*(\w+)\.([\w.]*)$/.exec(before);
  if (figure) {
    const [, table = "", word = ""] = figure;
    return { from: at - word.length, options: figuresOf(table, schema) };
  }
  const found = /^\s*(\w+)\.[\w.]+\s+(.*)$/s.exec(before);
  const keys = found ? KEYS[found[1] ?? ""] : undefined;
  if (!found || !keys) {
    return undefined;
  }
  const rest = found[2] ?? "";
  const value = /(\w+)\s*=\s*(?:[^,|]*\|)*([^,|]*)$/.exec(rest);
  if (value) {
    const word = value[2] ?? "";
    return { from: at - word.length, options: valuesOf(value[1] ?? "", schema) };
  }
  if (/^w?h?e?r?e?$/.test(rest)) {
    return {
      from: at - rest.length,
      options: [{ label: "where", kind: "keyword", apply: "where " }],
    };
  }
  const word = WORD.exec(rest)?.[0] ?? "";
  const options = Object.entries(keys).map(
    ([label, detail]): Suggestion => ({ label, kind: "column", detail, apply: `${label}=` }),
  );
  return { from: at - word.length, options };
}

function figuresOf(table: string, schema: Schema): Suggestion[] {
  if (table === "stats") {
    return Object.entries(STATS).map(([label, detail]) => ({ label, kind: "column", detail }));
  }
  if (table === "executions") {
    return [{ label: "seconds", kind: "column", detail: "time of an execution" }];
  }
  const all: Suggestion = { label: "value", kind: "column", detail: "of all metrics" };
  return [...schema.names.metric.map((label): Suggestion => ({ label, kind: "value" })), all];
}

function valuesOf(key: string, schema: Schema): Suggestion[] {
  const names = schema.names as Record<string, string[]>;
  const plain = (labels: string[]) => labels.map((label): Suggestion => ({ label, kind: "value" }));
  if (key === "run") {
    return plain(["last", "*", ...schema.runs]);
  }
  if (key === "name") {
    return plain(schema.names.metric);
  }
  return key in names ? plain(names[key] ?? []) : [];
}
