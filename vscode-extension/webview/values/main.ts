/** The table's page: all values of the frame, sorted and filtered here, statistics as they are seen. */

import { counted, grouped } from "../../shared/format";
import type { HostMessage, PageMessage, Value } from "../../shared/values/messages";
import { filtered, notFinite } from "../../shared/values/rows";
import { h } from "../dom";
import { Requests } from "./requests";
import { ValueTable } from "./table";

interface State {
  filter?: string;
  troubled?: boolean;
}

const vscode = acquireVsCodeApi<State>();
const root = document.getElementById("root") as HTMLElement;
const post = (message: PageMessage) => vscode.postMessage(message);

const filter = h("input", {
  type: "search",
  class: "filter",
  placeholder: "Filter by name, kind or type",
  "aria-label": "Filter",
  value: vscode.getState()?.filter ?? "",
});
const troubled = h("button", {
  class: "troubled",
  text: "NaN, inf",
  title: "Only values with NaNs or infinities",
  "aria-pressed": String(vscode.getState()?.troubled ?? false),
});
const count = h("span", { class: "count", role: "status" });
const note = h("div", { class: "note", role: "status", hidden: true });
let turn = 0;
let graph = "";
let total = 0;
let values: Value[] = [];

const requests = new Requests((names) => post({ kind: "want", turn, names }));
const table = new ValueTable({
  want: (wanted, byHand) => requests.want(wanted, byHand),
  goTo: (name, focus) => post({ kind: "line", name, focus }),
  open: (name) => post({ kind: "tensor", name }),
  search: () => filter.focus(),
  sorted: () => show(),
});
root.append(h("div", { class: "toolbar" }, filter, troubled, count), note, table.element);

filter.addEventListener("input", () => show());
filter.addEventListener("keydown", (event) => {
  if (event.key === "Escape" || event.key === "Enter" || event.key === "ArrowDown") {
    event.preventDefault();
    filter.value = event.key === "Escape" ? "" : filter.value;
    show();
    table.element.focus();
  }
});
troubled.addEventListener("click", () => {
  troubled.setAttribute("aria-pressed", String(!only()));
  show();
});
window.addEventListener("message", (event: MessageEvent<HostMessage>) => receive(event.data));
window.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "f") {
    event.preventDefault();
    filter.select();
  }
});
post({ kind: "ready" });

function only(): boolean {
  return troubled.getAttribute("aria-pressed") === "true";
}

function receive(message: HostMessage): void {
  if (message.kind === "state") {
    note.textContent = message.text;
    note.hidden = false;
    requests.clear();
    return;
  }
  if (message.kind === "values") {
    ({ turn, graph, total, values } = message);
    note.hidden = true;
    requests.clear();
  } else if (message.turn === turn) {
    const told = new Map(message.values.map((value) => [value.name, value]));
    values = values.map((value) => told.get(value.name) ?? value);
    requests.answered(values);
  }
  show();
}

function show(): void {
  vscode.setState({ filter: filter.value, troubled: only() });
  const shown = filtered(values, filter.value, only());
  table.show(shown);
  requests.wantAll(only() || table.needsFigures ? values : []);
  const odd = values.filter((value) => notFinite(value) > 0).length;
  const open = values.filter((value) => value.statistics === undefined).length;
  const parts = [
    shown.length === values.length
      ? counted(total, "value")
      : `${grouped(shown.length)} of ${counted(total, "value")}`,
    total > values.length && `the latest ${grouped(values.length)} here`,
    odd > 0 && `${grouped(odd)} not finite`,
    open > 0 && (only() || table.needsFigures) && `${grouped(open)} without statistics`,
  ];
  count.textContent = `${graph}: ${parts.filter(Boolean).join(", ")}`;
}
