/** The heads of a file's graphs, read without Python: what they are called, take, and leave open. */

export interface Input {
  name: string;
  dtype: string;
  dims: string[];
}

export interface GraphHead {
  name: string;
  /** Of the head and of the closing brace, from 0. */
  line: number;
  endLine: number;
  inputs: Input[];
}

export interface Program {
  graphs: GraphHead[];
  /** Whether there are weights that a file could hold. */
  hasParams: boolean;
}

const NAME = /^[A-Za-z_]\w*$/;

/** Reads what is there; a graph whose head is not complete is left out. */
export function readProgram(text: string): Program {
  const code = blankComments(text);
  const graphs: GraphHead[] = [];
  const lineOf = lineCounter(code);
  for (const match of code.matchAll(
    /^[ \t\f]*graph[ \t\f]+([A-Za-z_]\w*)[ \t\f]*(?:<[^>\n]*>[ \t\f]*)?\(/gm,
  )) {
    const open = match.index + match[0].length;
    const close = closingParenthesis(code, open);
    if (close < 0) {
      continue;
    }
    const next = code.slice(close).search(/^[ \t\f]*(?:graph|param|state)\b/m);
    const limit = next < 0 ? code.length : close + next;
    const brace = code.slice(close, limit).indexOf("}");
    const end = brace < 0 ? limit : close + brace;
    graphs.push({
      name: match[1] ?? "",
      line: lineOf(match.index + match[0].search(/\S/)),
      endLine: lineOf(end),
      inputs: readInputs(code.slice(open, close)),
    });
  }
  return { graphs, hasParams: /^[ \t\f]*param[ \t\f]+[A-Za-z_`]/m.test(code) };
}

/** The line, from 0, of places that are asked for in rising order. */
function lineCounter(text: string): (offset: number) => number {
  let [seen, line] = [0, 0];
  return (offset) => {
    for (let at = text.indexOf("\n", seen); at >= 0 && at < offset; at = text.indexOf("\n", seen)) {
      line++;
      seen = at + 1;
    }
    return line;
  };
}

/** The text with comments and strings position blank; every place stays where it was. */
function blankComments(text: string): string {
  return text.replace(/#[^\n]*|"(?:\\.|[^"\\\n])*"/g, (found) => " ".repeat(found.length));
}

/** Where the parenthesis that stands before `from` is closed; -1 where it is not. */
function closingParenthesis(code: string, from: number): number {
  let depth = 1;
  for (let at = from; at < code.length && code[at] !== "{"; at++) {
    if (code[at] === "(") {
      depth++;
    } else if (code[at] === ")" && --depth === 0) {
      return at;
    }
  }
  return -1;
}

function readInputs(text: string): Input[] {
  const inputs: Input[] = [];
  for (const match of text.matchAll(/([A-Za-z_]\w*)\s*:\s*([A-Za-z_]\w*)\s*\[([^\]]*)\]/g)) {
    const dims = (match[3] ?? "").split(",").map((dim) => dim.trim());
    inputs.push({ name: match[1] ?? "", dtype: match[2] ?? "", dims: dims.filter(Boolean) });
  }
  return inputs;
}

/** The symbols that inputs bind, in their order: dims that stand alone. */
export function symbolsOf(inputs: Input[]): string[] {
  return [...new Set(inputs.flatMap((input) => input.dims.filter((dim) => NAME.test(dim))))];
}

/** The graph whose text a line belongs to. */
export function graphAt(program: Program, line: number): GraphHead | undefined {
  return program.graphs.find((graph) => graph.line <= line && line <= graph.endLine);
}

/** The graph that runs where none is named: the only one, or `main`. */
export function defaultGraph(program: Program): GraphHead | undefined {
  return program.graphs.length === 1
    ? program.graphs[0]
    : program.graphs.find((graph) => graph.name === "main");
}

interface Statement {
  /** From 0. */
  line: number;
  text: string;
}

/** The statements of a graph; one may be broken over lines inside of its parentheses. */
function statementsOf(code: string, graph: GraphHead): Statement[] {
  const lines = code.split("\n").slice(0, graph.endLine + 1);
  const statements: Statement[] = [];
  let depth = 0;
  let inBody = false;
  for (let number = graph.line; number < lines.length; number++) {
    let text = lines[number] ?? "";
    if (!inBody) {
      const brace = text.indexOf("{");
      inBody = brace >= 0;
      text = inBody ? text.slice(brace + 1) : "";
    }
    text = text.replace(/\}.*/, "").trim();
    const last = statements.at(-1);
    if (text && depth > 0 && last) {
      last.text += ` ${text}`;
    } else if (text) {
      statements.push({ line: number, text });
    }
    depth += text.split(/[([]/).length - text.split(/[)\]]/).length;
  }
  return statements;
}

/** The names that a statement gives to its results. */
function resultsOf(statement: Statement): string[] {
  const match = /^([^=(]*?)=/.exec(statement.text.replace(/:[^=]*?\[[^\]]*\]/g, ""));
  return (match?.[1] ?? "").split(",").map((name) => name.trim());
}

/**
 * The line, from 0, of the statement behind the one that computes `value`, or of the first one where
 * it is an input; undefined where there is none.
 */
export function lineAfter(text: string, graph: string, value: string): number | undefined {
  const head = readProgram(text).graphs.find((g) => g.name === graph);
  if (!head) {
    return undefined;
  }
  const statements = statementsOf(blankComments(text), head);
  if (head.inputs.some((input) => input.name === value)) {
    return statements[0]?.line;
  }
  const position = statements.findIndex((statement) => resultsOf(statement).includes(value));
  return position < 0 ? undefined : statements[position + 1]?.line;
}
