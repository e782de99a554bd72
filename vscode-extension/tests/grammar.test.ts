/** The grammar on real texts: each word with the innermost scope that it gets. */

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { beforeAll, describe, expect, it } from "vitest";
import oniguruma from "vscode-oniguruma";
import textmate from "vscode-textmate";

const ROOT = path.join(__dirname, "..");
const FILES: Record<string, string> = {
  "source.opg": "syntaxes/opg.tmLanguage.json",
  "markdown.opg.codeblock": "syntaxes/markdown.tmLanguage.json",
};
/** As much of Markdown's grammar as an injection needs. */
const MARKDOWN = '{"scopeName": "text.html.markdown", "patterns": []}';

let grammar: textmate.IGrammar;
let markdown: textmate.IGrammar;

beforeAll(async () => {
  const wasm = createRequire(__filename).resolve("vscode-oniguruma/release/onig.wasm");
  await oniguruma.loadWASM(readFileSync(wasm));
  const registry = new textmate.Registry({
    onigLib: Promise.resolve({
      createOnigScanner: (patterns) => new oniguruma.OnigScanner(patterns),
      createOnigString: (text) => new oniguruma.OnigString(text),
    }),
    loadGrammar: async (scope) => {
      const file = FILES[scope];
      return file
        ? textmate.parseRawGrammar(readFileSync(path.join(ROOT, file), "utf8"), file)
        : textmate.parseRawGrammar(MARKDOWN, "markdown.json");
    },
    getInjections: (scope) =>
      scope === "text.html.markdown" ? ["markdown.opg.codeblock"] : undefined,
  });
  markdown = (await registry.loadGrammar("text.html.markdown")) as textmate.IGrammar;
  grammar = (await registry.loadGrammar("source.opg")) as textmate.IGrammar;
});

/** `word scope` for each word of a text that is not blank; `.opg` is left out. */
function words(text: string, by = grammar): string[] {
  const found: string[] = [];
  let stack = textmate.INITIAL;
  for (const line of text.split("\n")) {
    const { tokens, ruleStack } = by.tokenizeLine(line, stack);
    stack = ruleStack;
    for (const token of tokens) {
      const word = line.slice(token.startIndex, token.endIndex).trim();
      const scope = token.scopes.at(-1)?.replace(/\.opg$/, "") ?? "";
      if (word) {
        found.push(`${word} ${scope}`);
      }
    }
  }
  return found;
}

/** Scopes by word, of words that matter for colours. */
function scopes(text: string): Record<string, string> {
  return Object.fromEntries(
    words(text).map((entry) => {
      const space = entry.lastIndexOf(" ");
      return [entry.slice(0, space), entry.slice(space + 1)];
    }),
  );
}

describe("a declaration", () => {
  it("has its kind, its name, its type and its initialiser", () => {
    expect(scopes("param conv1.w: f32[6, 3] = normal(std=-0.2)  # drawn")).toMatchObject({
      param: "storage.type",
      "conv1.w": "variable.other.constant",
      f32: "support.type",
      "6": "constant.numeric.integer",
      normal: "entity.name.function.call",
      std: "variable.parameter.attribute",
      "0.2": "constant.numeric.float",
      drawn: "comment.line.number-sign",
    });
    expect(scopes("state largest: f32[] = -inf")).toMatchObject({
      state: "storage.type",
      inf: "constant.numeric.float",
    });
    expect(scopes("param `0.w at`: f32[6]")).toMatchObject({
      "`0.w at`": "variable.other.constant",
      f32: "support.type",
    });
    expect(scopes("state ready: bool[] = false")).toMatchObject({ false: "constant.language" });
  });
});

describe("a graph", () => {
  it("has inputs, symbols and results", () => {
    const found = scopes("graph main(x: f32[N, L - K + 1]) -> i64[N] { return x }");
    expect(found).toMatchObject({
      graph: "storage.type.function",
      main: "entity.name.function",
      f32: "support.type",
      N: "variable.other.symbol",
      K: "variable.other.symbol",
      "->": "keyword.operator.arrow",
      i64: "support.type",
      return: "keyword.control.flow",
    });
    expect(words("graph a(x: f32[N]) -> f32[N] {")).toContain("x variable.parameter");
  });

  it("has type variables", () => {
    const found = words("graph mean<T: float, I>(x: T[N], k: I[]) -> T[] {");
    expect(found).toContain("mean entity.name.function");
    expect(found.filter((word) => /^(T|I) /.test(word))).toEqual([
      "T entity.name.type.parameter",
      "I entity.name.type.parameter",
      "T entity.name.type.parameter",
      "I entity.name.type.parameter",
      "T entity.name.type.parameter",
    ]);
    expect(found).toContain("float support.type");
    expect(found).toContain("x variable.parameter");
    expect(found).toContain("N variable.other.symbol");
  });

  it("has statements of every kind", () => {
    const text = [
      "graph main(x: f32[N]) -> f32[N] {",
      '  y, z: f32[N] = split(x, axis=-1, mode="a\\n") at "model.py":12, "a.py":3 in "mod"  # behind',
      "  w <- y",
      "  `0.w # at` <- y",
      "  z = add(`in # out`, y, axis=1)",
      '  assert fine, "why"',
      "  n = cond(p, x, then=yes, else=no)",
      "  r = reshape(conv1.w, shape=[N, 8*(M + 1)], as=bf16)",
      "  return y, z",
      "}",
    ].join("\n");
    expect(scopes(text)).toMatchObject({
      split: "entity.name.function.call",
      axis: "variable.parameter.attribute",
      at: "keyword.other.origin",
      in: "keyword.other.origin",
      mod: "string.quoted.double",
      "\\n": "constant.character.escape",
      "model.py": "string.quoted.double",
      "12": "constant.numeric.integer",
      behind: "comment.line.number-sign",
      w: "variable.other.constant",
      "`0.w # at`": "variable.other.constant",
      "`in # out`": "variable.other.constant",
      "<-": "keyword.operator.update",
      assert: "keyword.control.assert",
      cond: "keyword.control",
      // biome-ignore lint/suspicious/noThenProperty: an attribute of cond
      then: "variable.parameter.attribute",
      yes: "entity.name.function",
      else: "variable.parameter.attribute",
      no: "entity.name.function",
      "conv1.w": "variable.other.constant",
      bf16: "support.type",
    });
  });

  it("goes on behind lines that are broken inside of parentheses", () => {
    const text = [
      "graph a(",
      "  x: f32[N],  # why",
      ") -> f32[N] {",
      "  y = add(",
      "    x,",
      "    1e-3,",
      "  )",
      "}",
    ];
    const found = scopes(text.join("\n"));
    expect(found).toMatchObject({
      add: "entity.name.function.call",
      "1e-3": "constant.numeric.float",
    });
    expect(found["}"]).toBe("punctuation.section.block.end");
  });

  it("ends where the next one begins, also while it is typed", () => {
    const text =
      "graph half(x: f32[N\ngraph main(x: f32[N]) -> f32[N] {\n  y = relu(x\n\ngraph last() {\n}";
    const found = words(text).filter((w) => w.endsWith(" entity.name.function"));
    expect(found.map((w) => w.split(" ")[0])).toEqual(["half", "main", "last"]);
  });
});

describe("numbers, texts and comments", () => {
  it.each(["0.5", ".5", "1.", "1e-3", "2.5E+4", "nan"])("%s is a float", (number) => {
    expect(scopes(`graph a() {\n  y = add(x, ${number})\n}`)[number]).toBe(
      "constant.numeric.float",
    );
  });

  it("an attribute may be called like a constant", () => {
    expect(scopes("graph a() {\n  y = f(x, none=1, at=2, nan=3)\n}")).toMatchObject({
      none: "variable.parameter.attribute",
      at: "variable.parameter.attribute",
      nan: "variable.parameter.attribute",
    });
  });

  it("a text ends with its line", () => {
    const found = words('graph a() {\n  assert x, "open\n  return x\n}');
    expect(found).toContain("return keyword.control.flow");
  });

  it("a # in a text is no comment", () => {
    expect(words('graph a() {\n  assert x, "a # b"\n}').join("\n")).not.toMatch(/comment/);
  });
});

it("leaves nothing of the examples without a scope, and finds nothing illegal in them", () => {
  for (const name of ["lenet", "attention", "while", "unet", "branches"]) {
    const text = readFileSync(path.join(ROOT, `../examples/${name}.opg`), "utf8");
    const found = words(text);
    expect(
      found.filter((w) => /\b(meta\.|source\b|invalid)/.test(w.slice(w.lastIndexOf(" ")))),
    ).toEqual([]);
    expect(found.filter((w) => w.endsWith("storage.type.function")).length).toBe(
      text.match(/^graph /gm)?.length,
    );
  }
});

it("colours graphs in fences of Markdown, and nothing behind them", () => {
  const text =
    "graph one\n\n```opg\ngraph two(x: f32[N]) {\n}\n```\n\ngraph three\n\n```py\ngraph four()\n```";
  const found = words(text, markdown).filter((w) => w.endsWith(" entity.name.function"));
  expect(found).toEqual(["two entity.name.function"]);
});
