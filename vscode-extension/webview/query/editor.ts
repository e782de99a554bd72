/** The box that questions are written in: SQL, or the short language of plots. */

import {
  acceptCompletion,
  autocompletion,
  type Completion,
  type CompletionContext,
  type CompletionResult,
  closeBrackets,
  closeBracketsKeymap,
  closeCompletion,
  completionKeymap,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, toggleComment } from "@codemirror/commands";
import { SQLDialect, sql } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { lintKeymap, setDiagnostics } from "@codemirror/lint";
import { Compartment, EditorState, Prec } from "@codemirror/state";
import { drawSelection, EditorView, keymap, placeholder } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import type { Mode, Problem, Schema } from "../../shared/query/messages";
import { completePlot, completeSql, KEYWORDS, type Suggestion } from "./completion";

/** The colours are those of the workbench: VS Code gives its token colours no variables, but these. */
const highlight = HighlightStyle.define([
  { tag: tags.keyword, class: "tok-keyword" },
  { tag: [tags.string, tags.special(tags.string)], class: "tok-string" },
  { tag: [tags.number, tags.bool, tags.null], class: "tok-number" },
  { tag: [tags.lineComment, tags.blockComment], class: "tok-comment" },
  { tag: [tags.typeName, tags.standard(tags.name)], class: "tok-builtin" },
  { tag: tags.operator, class: "tok-operator" },
]);
/** SQLite's words alone: in other dialects `value` and `count` are keywords. */
const DIALECT = SQLDialect.define({
  keywords: KEYWORDS.join(" "),
  types: "integer real text blob",
  builtin: "",
  doubleQuotedStrings: false,
  identifierQuotes: '`"',
  operatorChars: "*+-%<>!=&|/~",
  specialVar: "@:?$",
});
const KINDS: Record<Suggestion["kind"], string> = {
  table: "class",
  view: "interface",
  column: "property",
  keyword: "keyword",
  function: "function",
  value: "constant",
  alias: "variable",
};

interface EditorEvents {
  run(): void;
  changed(text: string): void;
  /** The question before or after in the history; false where there is none. */
  recall(step: number): boolean;
}

export class Editor {
  readonly view: EditorView;
  private readonly language = new Compartment();
  private readonly hint = new Compartment();
  private readonly label = new Compartment();
  private mode: Mode = "sql";
  private schema: Schema | undefined;

  constructor(
    parent: HTMLElement,
    private readonly events: EditorEvents,
  ) {
    this.view = new EditorView({
      parent,
      state: EditorState.create({ extensions: this.extensions() }),
    });
  }

  get text(): string {
    return this.view.state.doc.toString();
  }

  /** What is marked, where something is: it is run alone. */
  get selected(): string {
    const { from, to } = this.view.state.selection.main;
    return this.view.state.sliceDoc(from, to);
  }

  set text(text: string) {
    const { state } = this.view;
    this.view.dispatch({
      changes: { from: 0, to: state.doc.length, insert: text },
      selection: { anchor: text.length },
    });
    this.unmark();
  }

  setSchema(schema: Schema | undefined): void {
    this.schema = schema;
  }

  setMode(mode: Mode): void {
    this.mode = mode;
    this.view.dispatch({
      effects: [
        this.language.reconfigure(mode === "sql" ? sql({ dialect: DIALECT }) : []),
        this.hint.reconfigure(placeholder(PLACEHOLDERS[mode])),
        this.label.reconfigure(EditorView.contentAttributes.of({ "aria-label": LABELS[mode] })),
      ],
    });
    this.unmark();
  }

  focus(): void {
    this.view.focus();
  }

  /** Nothing is offered any more, nor what is still on its way: it would cover the answer. */
  endCompletion(): void {
    closeCompletion(this.view);
  }

  /** Underlines what is wrong. `shift`: where the text that was run begins in the box. */
  mark(problem: Problem, shift = 0): void {
    if (problem.start === undefined) {
      return;
    }
    const length = this.view.state.doc.length;
    const from = Math.min(problem.start + shift, Math.max(0, length - 1));
    const to = Math.min(Math.max((problem.end ?? 0) + shift, from + 1), length);
    const message = problem.hint ? `${problem.message}\n${problem.hint}` : problem.message;
    this.view.dispatch(setDiagnostics(this.view.state, [{ from, to, severity: "error", message }]));
  }

  unmark(): void {
    this.view.dispatch(setDiagnostics(this.view.state, []));
  }

  private extensions() {
    const run = () => {
      this.events.run();
      return true;
    };
    const atEdge = (first: boolean) => {
      const { state } = this.view;
      const { head, empty } = state.selection.main;
      const line = state.doc.lineAt(head).number;
      return empty && line === (first ? 1 : state.doc.lines);
    };
    return [
      Prec.highest(
        keymap.of([
          { key: "Mod-Enter", run },
          { key: "F5", run },
          { key: "Alt-ArrowUp", run: () => atEdge(true) && this.events.recall(1) },
          { key: "Alt-ArrowDown", run: () => atEdge(false) && this.events.recall(-1) },
          { key: "Tab", run: acceptCompletion },
        ]),
      ),
      history(),
      drawSelection(),
      bracketMatching(),
      closeBrackets(),
      autocompletion({ override: [(context) => this.complete(context)], icons: true }),
      syntaxHighlighting(highlight),
      this.language.of(sql({ dialect: DIALECT })),
      this.hint.of(placeholder(PLACEHOLDERS.sql)),
      this.label.of(EditorView.contentAttributes.of({ "aria-label": LABELS.sql })),
      EditorView.lineWrapping,
      keymap.of([
        { key: "Mod-/", run: toggleComment },
        ...closeBracketsKeymap,
        ...completionKeymap,
        ...historyKeymap,
        ...lintKeymap,
        ...defaultKeymap.filter((binding) => binding.key !== "Mod-Enter"),
      ]),
      EditorView.updateListener.of((update) => {
        if (update.docChanged) {
          this.events.changed(this.text);
        }
      }),
    ];
  }

  private complete(context: CompletionContext): CompletionResult | null {
    if (!this.schema) {
      return null;
    }
    const text = context.state.doc.toString();
    const complete = this.mode === "sql" ? completeSql : completePlot;
    const found = complete(text, context.pos, this.schema);
    const begun =
      found && (found.from < context.pos || /[.=|]\s*$/.test(text.slice(0, found.from)));
    const after = /\b(?:from|join|where)\s+$/i.test(text.slice(0, context.pos));
    if (!found || (!begun && !after && !context.explicit)) {
      return null;
    }
    return { from: found.from, options: found.options.map(completion), validFor: /^[\w$]*$/ };
  }
}

const LABELS: Record<Mode, string> = { sql: "SQL query", plot: "What to plot" };
const PLACEHOLDERS: Record<Mode, string> = {
  sql: "select * from runs",
  plot: "stats.absmax where op=conv2d, run=last",
};

function completion(found: Suggestion): Completion {
  return {
    label: found.label,
    type: KINDS[found.kind],
    detail: found.detail,
    info: found.info,
    apply: found.apply,
    boost: found.boost,
  };
}
