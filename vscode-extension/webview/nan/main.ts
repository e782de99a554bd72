/** The NaN report's page: a chain from the tensor that was asked about back to where it began. */

import { counted, grouped, significant } from "../../shared/format";
import type {
  BadElement,
  Finding,
  HostMessage,
  Link,
  PageMessage,
  Place,
} from "../../shared/nan/messages";
import { cameFirst, causeOf, countBad, explainedBy, summarize } from "../../shared/nan/report";
import { fill, h } from "../dom";

const vscode = acquireVsCodeApi<unknown>();
const root = document.getElementById("root") as HTMLElement;
const post = (message: PageMessage) => vscode.postMessage(message);

window.addEventListener("message", (event: MessageEvent<HostMessage>) => receive(event.data));
post({ kind: "ready" });

type Report = Extract<HostMessage, { kind: "report" }>;
let shown = "";

function receive(message: HostMessage): void {
  switch (message.kind) {
    case "report":
      showReport(message);
      break;
    case "findings":
      showFindings(message.findings, message.title);
      break;
    case "stale":
      document.body.classList.add("stale");
      break;
    default:
      fill(root, h("p", { class: "trouble", role: "status" }, message.text));
  }
}

function copy(): HTMLElement {
  return h(
    "button",
    { title: "Copy the report as text", onclick: () => post({ kind: "copy" }) },
    "Copy as text",
  );
}

function showReport({ report, title, where, state, outdated }: Report): void {
  document.body.classList.toggle("stale", state === "old" || outdated === true);
  document.body.classList.toggle("past", state === "past");
  const of = `${title} ${where}`;
  if (of !== shown) {
    window.scrollTo(0, 0);
  }
  shown = of;
  fill(
    root,
    h(
      "header",
      {},
      h("h1", {}, report.found ? `Why ${title} is not finite` : `${title} is finite now`),
      h("span", { class: "where" }, `at ${where}`),
      h("span", { class: "space" }),
      copy(),
    ),
    h("p", { class: "why" }, summarize(report)),
    h(
      "p",
      { class: "old", role: "status" },
      "The run has gone on or ended, or another has begun: this is how it was. Debug there goes back to it.",
    ),
    h(
      "ol",
      report.separate
        ? { class: "places", "aria-label": "Where they were born" }
        : { class: "chain", "aria-label": "From the tensor back to its origin" },
      ...report.links.map((link, k) => linkItem(link, k, state !== "past", causeOf(report, link))),
    ),
    report.summary !== undefined && report.text && h("pre", { class: "details" }, report.text),
  );
}

/** `cause`: the origin that it follows from. */
function linkItem(link: Link, k: number, tensors: boolean, cause?: Link): HTMLElement {
  const count = countOf(link);
  const partly = link.born && link.born !== link.count;
  const born = link.kind === "origin" && partly ? `, ${grouped(link.born ?? 0)} born here` : "";
  return h(
    "li",
    { class: `link ${link.kind}${cause ? " follows" : ""}` },
    h(
      "div",
      { class: "head" },
      h("span", { class: "kind" }, cause ? `follows from ${cause.name}` : kindOf(link)),
      tensors && canOpen(link)
        ? tensorButton(link, k)
        : h("span", { class: "name" }, link.name || "literal"),
      h("code", { class: "type" }, link.type),
      link.op && h("span", { class: "op" }, `result of ${link.op}`),
      h("span", { class: "count" }, count + born),
      h("span", { class: "space" }),
      h(
        "span",
        { class: "go" },
        link.line !== undefined && lineButton(link, k),
        link.kind === "origin" && link.here && h("span", { class: "here" }, "the run stands here"),
        link.kind === "origin" && debugButton(link, k),
      ),
    ),
    link.statement &&
      h(
        "button",
        {
          class: "statement",
          title: "Go to the line",
          "aria-label": `Go to line ${link.line}: ${link.statement}`,
          onclick: () => post({ kind: "line", link: k }),
        },
        link.statement,
      ),
    link.backward &&
      h("p", { class: "rule" }, "In the derivative of ", h("code", {}, link.backward)),
    link.kind === "given" &&
      h(
        "p",
        { class: "rule" },
        "It entered the run with them: an input, a param, or a value that was set.",
      ),
    ...(link.rules ?? []).map((r) =>
      rule(r.rule, explainedBy(r.elements, link), cause ? undefined : r.advice),
    ),
    cause && h("p", { class: "rule" }, cameFirst(cause)),
    link.elements?.length ? elements(link, k, link.elements, tensors) : false,
    ...(link.notes ?? []).map((note) => h("p", { class: "note" }, note)),
    link.before &&
      h("p", { class: "way" }, h("span", { class: "count" }, "before it: "), ...lost(link.before)),
    link.way?.length ? way(link.way) : false,
  );
}

/** What a link is, in a word or two. */
function kindOf(link: Link): string {
  const labels = {
    origin: "born here",
    propagated: "passed on",
    given: "from outside",
    finite: "finite",
  };
  return labels[link.kind];
}

/** Whether its elements are still there: a script's op may have stopped before they have a name. */
function canOpen(tensor: { expression?: string; memoryReference?: string } | undefined): boolean {
  return tensor?.expression !== undefined || tensor?.memoryReference !== undefined;
}

function tensorButton(link: Link, k: number): HTMLElement {
  const place = link.elements?.[0]?.place ?? [];
  const onclick = () => post({ kind: "element", link: k, place });
  const title = "Open it in the Tensor view";
  return h("button", { class: "link name", title, onclick }, link.name || "literal");
}

/** Shown in place of "the run stands here" as soon as it does not. */
function debugButton(link: Link, k: number): HTMLElement {
  const title = `Stop behind ${link.op ?? "it"}, with the same inputs`;
  const onclick = () => post({ kind: "debug", link: k });
  return h("button", { class: "debug", title, onclick }, "Debug there");
}

/** Which way they go from there: `reaches mean: h → total → mean` */
function way(places: readonly Place[]): HTMLElement {
  const last = places[places.length - 1]?.name ?? "";
  return h(
    "p",
    { class: "way" },
    h("span", { class: "count" }, `reaches ${last}: `),
    ...places.flatMap((place, k) => [k ? " → " : "", placeButton(place)]),
  );
}

function lost({ text, ...place }: Place & { text: string }): (HTMLElement | string)[] {
  return [`${text}, in `, placeButton({ ...place, name: place.op ?? place.name })];
}

function placeButton({ name, op, path, line }: Place): HTMLElement {
  return path && line
    ? h(
        "button",
        {
          class: "link",
          title: `${op ?? name}, ${path.replace(/^.*[\\/]/, "")}:${line}`,
          onclick: () => post({ kind: "place", path, line }),
        },
        name,
      )
    : h("span", {}, name);
}

function lineButton(link: Link, k: number): HTMLElement {
  const file = link.source?.name ?? link.source?.path?.replace(/^.*\//, "") ?? "";
  return h(
    "button",
    { class: "link", title: "Go to the line", onclick: () => post({ kind: "line", link: k }) },
    `${link.graph ? `${link.graph}, ` : ""}${file}:${link.line}`,
  );
}

function countOf(link: Link): string {
  const of = link.size ? ` of ${counted(link.size, "element")}` : "";
  return link.count ? countBad(link) + of : "";
}

function rule(text: string, explained: string, advice = ""): HTMLElement {
  return h(
    "p",
    { class: "rule" },
    h("b", {}, text),
    h("span", { class: "count" }, ` ${explained} `),
    advice,
  );
}

function elements(
  link: Link,
  k: number,
  found: readonly BadElement[],
  tensors: boolean,
): HTMLElement {
  const named = (text: string, to: { link: number; operand?: number; place: number[] }) =>
    tensors && opens(to) ? elementLink(text, to) : h("span", {}, text);
  const opens = (to: { operand?: number }) =>
    to.operand === undefined
      ? canOpen(link)
      : canOpen(link.operands?.find((o) => o.operand === to.operand));
  const several = new Set(found.map((e) => e.rule)).size > 1;
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, "element"),
        h("th", { scope: "col" }, "value"),
        h("th", { scope: "col" }, "computed from"),
        several && h("th", { scope: "col" }, "rule"),
      ),
    ),
    h(
      "tbody",
      {},
      ...found.map((e) =>
        h(
          "tr",
          {},
          h("td", {}, named(`${link.name}[${e.place.join(", ")}]`, { link: k, place: e.place })),
          h("td", { class: "value bad" }, formatValue(e.value)),
          h(
            "td",
            {},
            ...e.of.map((b) =>
              h(
                "span",
                { class: "blamed" },
                named(`${b.name}[${b.place.join(", ")}]`, {
                  link: k,
                  operand: b.operand,
                  place: b.place,
                }),
                ` = ${formatValue(b.value)}`,
              ),
            ),
          ),
          several && h("td", {}, e.rule),
        ),
      ),
    ),
  );
}

function elementLink(
  text: string,
  to: { link: number; operand?: number; place: number[] },
): HTMLElement {
  return h(
    "button",
    {
      class: "link",
      title: "Show this element in the Tensor view",
      onclick: () => post({ kind: "element", ...to }),
    },
    text,
  );
}

function showFindings(findings: readonly Finding[], title: string): void {
  document.body.classList.remove("stale");
  const columns = ["kind", "value", "op", "line", "what was found", "run", "step"];
  fill(
    root,
    h(
      "header",
      {},
      h("h1", {}, "Findings"),
      h("span", { class: "where" }, title),
      h("span", { class: "space" }),
      copy(),
    ),
    findings.length === 0 && h("p", {}, "The runs of this workspace have no findings."),
    h(
      "table",
      { class: "findings" },
      h("thead", {}, h("tr", {}, ...columns.map((c) => h("th", { scope: "col" }, c)))),
      h(
        "tbody",
        {},
        ...findings.map((f, k) =>
          h(
            "tr",
            {},
            h("td", { class: `kind ${f.kind}` }, f.kind),
            h("td", {}, h("code", {}, f.value ?? "")),
            h("td", {}, String(f.op ?? "")),
            h(
              "td",
              {},
              f.file
                ? h(
                    "button",
                    {
                      class: "link",
                      title: "Show its report, and go to the line",
                      onclick: () => post({ kind: "finding", finding: k }),
                    },
                    `${f.file.replace(/^.*\//, "")}:${f.line}`,
                  )
                : "",
            ),
            h("td", { class: "message" }, f.message ?? ""),
            h("td", {}, f.run),
            h("td", { class: "value" }, f.step === null ? "" : String(f.step)),
          ),
        ),
      ),
    ),
  );
}

function formatValue(value: number | string): string {
  return typeof value === "number" ? significant(value, 7) : value;
}
