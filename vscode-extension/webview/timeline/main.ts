/** The Timeline view in the browser: a frame with Perfetto in it, and a row above. */

import type { Found, FromFrame, ToHost, ToPage, Wanted } from "../../shared/timeline/messages";
import { h } from "../dom";
import { next, told } from "./slices";

const COVERED_MS = 15_000; // longest that Perfetto's own page before a trace is covered
const HELLO_MS = 250; // between two words to a frame that has not answered

const vscode = acquireVsCodeApi<{ address?: string }>();
const post = (message: ToHost) => vscode.postMessage(message);
const root = document.getElementById("root") ?? document.body;

const bar = h("header");
const text = h("span", { role: "status" });
const before = button("↑", "The one before (of this line)", () => go(-1));
const after = button("↓", "The next one (of this line)", () => go(1));
const close = button("×", "Close", () => show([], -1));
const again = button("Try again", "Open the timeline again", () => post({ kind: "retry" }));
const main = h("main");

let frame: HTMLIFrameElement | undefined;
let origin = "";
let answered = false;
let loaded = false;
let slices: Found[] = [];
let at = -1;
let request = 0;
let waiting: Wanted | undefined;

bar.append(text, before, after, again, close);
root.append(bar, main);
row("Starting the timeline …");

function button(label: string, title: string, act: () => void): HTMLButtonElement {
  return h("button", { type: "button", title, "aria-label": title, text: label, onclick: act });
}

/** Says something in the row above; without words it takes no room. */
function row(words: string, buttons: HTMLButtonElement[] = []): void {
  text.textContent = words;
  bar.classList.toggle("quiet", words === "");
  for (const each of [before, after, again, close]) {
    each.hidden = !buttons.includes(each);
  }
}

// --- the frame ---

function open(address: string): void {
  frame?.remove();
  answered = loaded = false;
  origin = new URL(address).origin;
  frame = h("iframe", {
    title: "Timeline (Perfetto)",
    src: address,
    allow: "clipboard-write",
  });
  main.replaceChildren(frame);
  main.classList.add("covered");
  window.setTimeout(() => main.classList.remove("covered"), COVERED_MS);
  row("Loading the timeline …");
  hello();
}

/** Until it answers: nothing says when its script listens. */
function hello(): void {
  if (frame !== undefined && !answered) {
    tell({ opstep: "hello", dark: dark() });
    window.setTimeout(hello, HELLO_MS);
  }
}

function tell(message: { opstep: string } & Record<string, unknown>): void {
  frame?.contentWindow?.postMessage(message, origin);
}

function dark(): boolean {
  const { classList } = document.body;
  const light =
    classList.contains("vscode-light") || classList.contains("vscode-high-contrast-light");
  return !light;
}

new MutationObserver(() => tell({ opstep: "theme", dark: dark() })).observe(document.body, {
  attributes: true,
  attributeFilter: ["class"],
});

function fromFrame(message: FromFrame): void {
  answered = true;
  switch (message.opstep) {
    case "ready":
      if (!loaded) {
        loaded = true;
        main.classList.remove("covered");
        row("");
        post({ kind: "loaded" });
        if (waiting !== undefined) {
          find(waiting);
        }
      }
      break;
    case "selected":
      if (!message.echo) {
        show([], -1);
        post({ kind: "selected", slice: message.slice });
      }
      break;
    case "found":
      if (message.request === request) {
        show(message.slices, 0);
      }
      break;
    case "failed":
      row(message.text, [close]);
      break;
    case "key":
      // VS Code listens for keys of the page, and not of frames in it.
      window.dispatchEvent(new KeyboardEvent("keydown", { ...message, bubbles: true }));
      break;
  }
}

// --- slices of a line ---

function find(wanted: Wanted): void {
  if (!loaded) {
    waiting = wanted;
    return;
  }
  waiting = undefined;
  request += 1;
  asked = wanted;
  const { file, line, text } = wanted;
  tell({ opstep: "find", request, file, line, text });
}
let asked: Wanted = { file: "", line: 0, text: "" };

function show(found: Found[], index: number): void {
  slices = found;
  at = Math.min(index, found.length - 1);
  const slice = slices[at];
  if (slice !== undefined) {
    row(told(slices, at), found.length > 1 ? [before, after, close] : [close]);
    tell({ opstep: "select", id: slice.id, zoom: true });
  } else if (index >= 0) {
    const file = asked.file.split(/[\\/]/).at(-1);
    row(`Nothing of ${file}:${asked.line} ran in this timeline`, [close]);
  } else {
    row("");
  }
}

function go(by: number): void {
  show(slices, next(slices.length, at, by));
}

window.addEventListener("message", ({ data, source }: MessageEvent<ToPage | FromFrame>) => {
  if (source !== null && source === frame?.contentWindow) {
    if ("opstep" in data) {
      fromFrame(data);
    }
    return;
  }
  if (!("kind" in data)) {
    return;
  }
  if (data.kind === "open") {
    open(data.address);
  } else if (data.kind === "find") {
    find(data);
  } else {
    row(data.text, data.kind === "failed" ? [again] : [again, close]);
  }
});

/** Who stands around the page: only they may have Perfetto in a frame. */
function around(): string[] {
  const found = new Set<string>([window.origin]);
  for (const each of Array.from(window.location.ancestorOrigins ?? [])) {
    found.add(each);
  }
  if (window.location.ancestorOrigins === undefined) {
    // Firefox does not tell; VS Code tells the page around this one, which is of the same origin.
    try {
      found.add(new URLSearchParams(window.parent.location.search).get("parentOrigin") ?? "null");
    } catch {
      // Not of the same origin after all: then the editor's own schemes have to do.
    }
  }
  return [...found].filter((each) => each !== "null");
}

post({ kind: "ready", origins: around() });
