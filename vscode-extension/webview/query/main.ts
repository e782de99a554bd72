/** The query panel: a question above, its answer below, as a table or as a chart. */

import { messageOf } from "../../shared/errors";
import { counted, duration } from "../../shared/format";
import type {
  Answer,
  HostMessage,
  Mode,
  PageMessage,
  PageState,
  Plot,
  Problem,
  Schema,
} from "../../shared/query/messages";
import { firstPlot } from "../../shared/query/plotText";
import { h } from "../dom";
import { answerActions, chartActions } from "./actions";
import { Answers } from "./answers";
import { Chart } from "./chart";
import { Editor } from "./editor";
import { showField } from "./field";
import { isNs } from "./format";
import { emptyStage, exampleItems, fillProblem } from "./hints";
import { QueryHistory } from "./history";
import { PlotPickers } from "./pickers";
import { chartPoints, plotColumns, requestPlot } from "./plotting";
import { Rpc } from "./rpc";
import { splitter } from "./splitter";
import { ResultTable } from "./table";
import { Toolbar } from "./toolbar";

const api = acquireVsCodeApi<PageState>();
const post = (message: PageMessage) => api.postMessage(message);
const rpc = new Rpc(post);
const SCHEMA_MS = 10_000;

class Panel {
  private path = "";
  private mode: Mode = "sql";
  private texts: Record<Mode, string> = { sql: "", plot: "" };
  private schema: Schema | undefined;
  private schemaUntil = 0; // when it is read again, for names that are new
  private readonly history = new QueryHistory();
  private lastRun = "";
  private stale = false;
  /** Before the extension has said which workspace is asked, a question waits. */
  private opened = false;
  private pending = false;

  private readonly toolbar: Toolbar;
  private readonly pickers = new PlotPickers((text) => this.setText("plot", text, true, false));
  private readonly editor: Editor;
  private readonly table: ResultTable;
  private readonly chart: Chart;
  private readonly answers: Answers;
  private readonly problem = h("div", { class: "problem", role: "alert", hidden: true });
  private readonly status = h("span", {
    class: "status",
    role: "status",
    "aria-live": "polite",
  });
  private readonly actionBar = h("div", { class: "actions" });
  private readonly stage = h("div", { class: "stage" });
  private readonly msBox = h("input", { type: "checkbox", id: "ns-as-ms", checked: true });
  private readonly msLabel = h("label", { for: "ns-as-ms", class: "ms" }, this.msBox, "ns as ms");

  constructor(root: HTMLElement) {
    this.toolbar = new Toolbar({
      run: () => void this.run(),
      stop: () => this.answers.stop(),
      mode: (mode) => this.setMode(mode),
      choose: (path) => post(path === undefined ? { type: "choose" } : { type: "chosen", path }),
      history: () => this.history.items((entry) => this.setText(entry.mode, entry.text)),
      examples: () =>
        exampleItems(this.mode, this.schema, (mode, text) => this.setText(mode, text, true)),
    });
    const box = h("div", { class: "editor" });
    this.editor = new Editor(box, {
      run: () => void this.run(),
      changed: (text) => {
        this.texts[this.mode] = text;
        this.pickers.show(this.texts.plot);
        this.saveState();
      },
      recall: (step) => this.recall(step),
    });
    this.answers = new Answers(rpc, {
      first: (answer) => this.showRows(answer),
      more: (answer) => this.table.grow(answer),
      progress: (answer) => this.showProgress(answer),
      failed: (error) => this.showProblem({ kind: "wrong", message: error.message, hint: "" }, 0),
    });
    this.table = new ResultTable({
      fetch: (offset, limit, sort) => this.answers.rows(offset, limit, sort),
      goto: (location) => post({ type: "goto", path: this.path, location: location }),
      open: (row, column) => void this.openField(row, column),
      copy: (text) => post({ type: "copy", text, done: "" }),
      copyRows: (first, count) => void this.copyAs("csv", first, count),
      failed: (error) => this.setStatus(error.message),
    });
    this.chart = new Chart({ zoom: (part) => void this.plotAgain(part) });
    this.msBox.addEventListener("change", () => this.table.show(this.msBox.checked));
    const border = splitter(box);
    const bar = h("div", { class: "result-bar" }, this.status, this.msLabel, this.actionBar);
    root.append(
      this.toolbar.element,
      this.pickers.element,
      box,
      border,
      this.problem,
      bar,
      this.stage,
    );
    this.show("none");
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.answers.running) {
        this.answers.stop();
      } else if (event.key === "F6") {
        event.preventDefault();
        (this.stage.contains(document.activeElement) ? this.editor : this.view)?.focus();
      }
    });
    this.setMode("sql");
  }

  // --- messages from the host ---

  receive(message: HostMessage): void {
    if (rpc.receive(message)) {
      return;
    }
    if (message.type === "open") {
      this.history.entries = message.history;
      this.toolbar.setWorkspaces(message.workspaces, message.path);
      this.texts = { ...this.texts, ...(message.mode && { [message.mode]: message.text ?? "" }) };
      const another = this.path !== message.path;
      this.path = message.path;
      this.setMode(message.mode ?? this.mode);
      if (another) {
        void this.loadSchema();
      }
      this.opened = true;
      if (message.text !== undefined || this.pending) {
        this.pending = false;
        void this.run();
      }
      this.saveState();
    } else if (message.type === "workspaces") {
      this.toolbar.setWorkspaces(message.workspaces, this.path);
    } else if (message.type === "changed" && message.path === this.path) {
      void this.fileChanged();
    }
  }

  restore(state: PageState): void {
    this.texts = { sql: state.sql, plot: state.plot };
    this.setMode(state.mode);
  }

  private saveState(): void {
    api.setState({ path: this.path, mode: this.mode, ...this.texts });
  }

  /** Tables and names of the workspace, for completion and examples. */
  private async loadSchema(): Promise<void> {
    try {
      this.schema = this.path
        ? await rpc.request<Schema>("schema", { path: this.path })
        : undefined;
    } catch (error) {
      this.schema = undefined;
      this.showProblem({ kind: "wrong", message: messageOf(error), hint: "" }, 0);
    }
    this.schemaUntil = performance.now() + (this.schema?.recorded.length ? SCHEMA_MS : 0);
    this.editor.setSchema(this.schema);
    this.pickers.setSchema(this.schema);
    this.beginPlot();
  }

  /** The file was written to: what is drawn is drawn again, with the steps that came. */
  private async fileChanged(): Promise<void> {
    if (this.mode === "plot" && this.lastRun && !this.answers.running) {
      await this.plotText(this.lastRun, true, undefined);
    } else {
      this.stale = true;
      this.noteStale();
    }
    if (performance.now() > this.schemaUntil) {
      await this.loadSchema();
    }
  }

  private noteStale(): void {
    if (this.stale && this.lastRun && !this.status.textContent?.includes("new rows")) {
      this.status.append(" · the workspace has new rows: run again");
    }
  }

  // --- running queries ---

  private setMode(mode: Mode): void {
    this.mode = mode;
    this.toolbar.setMode(mode);
    this.editor.setMode(mode);
    if (this.editor.text !== this.texts[mode]) {
      this.editor.text = this.texts[mode];
    }
    this.pickers.element.hidden = mode !== "plot";
    document.body.classList.toggle("plotting", mode === "plot");
    this.pickers.show(this.texts.plot);
    this.beginPlot();
    this.saveState();
  }

  /** Draws what is most likely wanted where nothing was asked for yet. */
  private beginPlot(): void {
    if (this.mode === "plot" && this.opened && this.schema && !this.texts.plot.trim()) {
      this.setText("plot", firstPlot(this.schema.names.metric), true, false);
    }
  }

  private async run(): Promise<void> {
    this.editor.endCompletion();
    const selected = this.mode === "sql" ? this.editor.selected : "";
    const text = (selected.trim() ? selected : this.editor.text).trimEnd();
    if (!text.trim()) {
      this.setStatus("Nothing to run: write a query, or choose an example");
      return;
    }
    if (!this.opened) {
      this.pending = true;
      return;
    }
    if (!this.path) {
      post({ type: "choose" });
      return;
    }
    this.clearProblem();
    this.lastRun = text;
    this.stale = false;
    this.remember(this.editor.text.trim());
    if (this.mode === "plot") {
      await this.plotText(text, false, undefined);
    } else {
      this.toolbar.setBusy(true);
      this.setStatus("Running …");
      await this.answers.ask(this.path, text);
    }
  }

  private showRows(answer: Answer): void {
    if (answer.problem && !answer.columns.length) {
      this.show("none");
      return;
    }
    this.show("table");
    const times = answer.columns.some(isNs);
    this.msLabel.hidden = !times;
    this.table.ms = times && this.msBox.checked;
    this.table.begin(answer);
  }

  private showProgress(answer: Answer): void {
    this.toolbar.setBusy(!answer.done);
    if (answer.problem && answer.problem.kind !== "stopped") {
      const begins = this.editor.text.indexOf(this.lastRun);
      this.showProblem(answer.problem, Math.max(0, begins));
      this.setStatus(answer.count ? `${counted(answer.count, "row")} before the error` : "");
      return;
    }
    const rows = counted(answer.count, "row");
    const time = duration(answer.seconds);
    let text = `${rows} in ${time}`;
    if (answer.problem) {
      text = `Stopped after ${rows}, ${time}`;
    } else if (!answer.done) {
      text = `${rows}, ${time} … still reading (Escape stops)`;
    } else if (answer.more) {
      text = `The first ${rows} in ${time}; there are more: Export writes all`;
    }
    this.setStatus(text);
    this.showActions(answer);
    this.noteStale();
  }

  // --- plots ---

  private async plotText(
    text: string,
    again: boolean,
    part: { low: number; high: number } | undefined,
  ) {
    this.toolbar.setBusy(true);
    if (!again) {
      this.setStatus("Reading …");
    }
    try {
      const plot = await requestPlot(rpc, this.path, text, chartPoints(this.stage), part);
      if (!plot || text !== this.lastRun) {
        return; // something else has been asked for
      }
      if (plot.problem) {
        if (!again) {
          this.showProblem(plot.problem, 0);
          this.setStatus("");
          this.show("none");
        }
        return;
      }
      this.clearProblem();
      this.showPlot(plot, again, duration(plot.seconds));
    } catch (error) {
      this.showProblem({ kind: "wrong", message: messageOf(error), hint: "" }, 0);
    } finally {
      this.toolbar.setBusy(false);
    }
  }

  private showPlot(plot: Plot, again: boolean, status: string): void {
    this.show("chart");
    this.msLabel.hidden = true;
    this.chart.show(plot, again);
    this.setStatus(status);
    this.actionBar.replaceChildren(...this.chartActions());
  }

  private async plotAgain(part: { low: number; high: number } | undefined): Promise<void> {
    if (this.mode === "plot") {
      await this.plotText(this.lastRun, true, part);
    } else if (this.replot) {
      await this.replot(part);
    }
  }

  private replot: ((part: { low: number; high: number } | undefined) => Promise<void>) | undefined;

  /** The answer as a chart: its first column of numbers along, the others up. */
  private async plotAnswer(answer: Answer): Promise<void> {
    const columns = plotColumns(answer);
    if (!columns) {
      this.setStatus("Nothing to plot: a plot needs two numeric columns");
      return;
    }
    const plot = async (part: { low: number; high: number } | undefined) => {
      const points = chartPoints(this.stage);
      const params = { query: this.answers.name, ...columns, points, ...part };
      const plot = await rpc.request<Plot>("plotRows", params);
      if (plot.problem) {
        this.setStatus(plot.problem.message);
        return;
      }
      this.showPlot(plot, part !== undefined || this.view === this.chart, duration(plot.seconds));
      const back = h("button", {
        text: "Table",
        title: "Show the rows",
        onclick: () => {
          this.show("table");
          this.showProgress(answer);
          this.table.focus();
        },
      });
      this.actionBar.prepend(back);
    };
    this.replot = plot;
    await plot(undefined);
  }

  // --- actions on an answer ---

  private showActions(answer: Answer): void {
    if (!answer.columns.length) {
      this.actionBar.replaceChildren();
      return;
    }
    const { path, lastRun: sql } = this;
    this.actionBar.replaceChildren(
      ...answerActions({
        plot: answer.done && plotColumns(answer) ? () => void this.plotAnswer(answer) : undefined,
        copy: (format) => void this.copyAs(format),
        write: (format) => post({ type: "export", path, sql, format }),
      }),
    );
  }

  private chartActions(): HTMLElement[] {
    const { path, lastRun: what } = this;
    const save = () => {
      const data = this.chart.picture(what.replace(/\s+/g, " ").trim().slice(0, 100));
      if (data) {
        post({ type: "save", name: "plot.png", data });
      }
    };
    const points = () => post({ type: "exportPlot", path, what });
    return chartActions(save, this.mode === "plot" ? points : undefined);
  }

  private async copyAs(format: string, offset = 0, limit?: number): Promise<void> {
    try {
      const text = await this.answers.copy(format, offset, limit, this.table.pages.sort);
      post({ type: "copy", text, done: `Copied ${counted(limit ?? this.answers.count, "row")}` });
    } catch (error) {
      this.setStatus(messageOf(error));
    }
  }

  /** A field whole: long texts come with their beginning alone. */
  private async openField(row: number, column: number): Promise<void> {
    try {
      const text = await this.answers.field(row, column, this.table.pages.sort);
      showField(
        text,
        () => post({ type: "copy", text, done: "" }),
        () => this.table.focus(),
      );
    } catch (error) {
      this.setStatus(messageOf(error));
    }
  }

  // --- history ---

  private remember(text: string): void {
    const entry = { mode: this.mode, text };
    this.history.add(entry);
    post({ type: "remember", ...entry });
  }

  private setText(mode: Mode, text: string, run = false, focus = true): void {
    this.texts[mode] = text;
    this.setMode(mode);
    if (focus) {
      this.editor.focus();
    }
    if (run) {
      void this.run();
    }
  }

  private recall(step: number): boolean {
    const text = this.history.recall(this.mode, step);
    if (text === undefined) {
      return false;
    }
    this.editor.text = text;
    return true;
  }

  // --- layout and status ---

  private get view(): { focus(): void } | undefined {
    return this.stage.contains(this.chart.element)
      ? this.chart
      : this.stage.contains(this.table.element)
        ? this.table
        : undefined;
  }

  private show(what: "table" | "chart" | "none"): void {
    const shown = { table: this.table.element, chart: this.chart.element, none: emptyStage() }[
      what
    ];
    if (this.stage.firstChild !== shown) {
      this.stage.replaceChildren(shown);
    }
    if (what === "none") {
      this.actionBar.replaceChildren();
      this.msLabel.hidden = true;
    }
  }

  private setStatus(text: string): void {
    this.status.textContent = text;
  }

  private showProblem(problem: Problem, shift: number): void {
    this.toolbar.setBusy(false);
    fillProblem(this.problem, problem);
    this.setStatus("");
    this.editor.mark(problem, shift);
  }

  private clearProblem(): void {
    this.problem.hidden = true;
    this.editor.unmark();
  }
}

const root = document.getElementById("root");
if (root) {
  const state = api.getState(); // before the panel keeps its own
  const panel = new Panel(root);
  window.addEventListener("message", (event: MessageEvent<HostMessage>) =>
    panel.receive(event.data),
  );
  if (state) {
    panel.restore(state);
  }
  post({ type: "ready" });
}
