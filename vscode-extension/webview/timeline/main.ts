/** The Timeline view in the browser: a frame with Perfetto in it, and a row above. */

import type {
  FrameMessage,
  HostMessage,
  LineQuery,
  LineSlice,
  PageMessage,
} from "../../shared/timeline/messages";
import { h } from "../dom";
import { describeSlice, nextIndex } from "./slices";

const COVERED_MS = 15_000; // longest that Perfetto's own page before a trace is covered
const HELLO_MS = 250; // between two words to a frame that has not answered

const vscode = acquireVsCodeApi<{ address?: string }>();
const post = (message: PageMessage) => vscode.postMessage(message);
const root = document.getElementById("root") ?? document.body;

const bar = h("header");
const text = h("span", { role: "status" });
const before = button("↑", "Previous slice of this line", () => go(-1));
const after = button("↓", "Next slice of this line", () => go(1));
const close = button("×", "Close", () => show([], -1));
const again = button("Try again", "Reload the timeline", () => post({ kind: "retry" }));
const main = h("main");

let frame: HTMLIFrameElement | undefined;
let origin = "";
let answered = false;
let loaded = false;
let slices: LineSlice[] = [];
let at = -1;
let request = 0;
let pending: LineQuery | undefined;

bar.append(text, before, after, again, close);
root.append(bar, main);
setBar("Starting the timeline …");

function button(label: string, title: string, act: () => void): HTMLButtonElement {
  return h("button", { type: "button", title, "aria-label": title, text: label, onclick: act });
}

/** Says something in the row above; without words it takes no room. */
function setBar(message: string, buttons: HTMLButtonElement[] = []): void {
  text.textContent = message;
  bar.classList.toggle("quiet", message === "");
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
  setBar("Loading the timeline …");
  hello();
}

/** Until it answers: nothing says when its script listens. */
function hello(): void {
  if (frame !== undefined && !answered) {
    postToFrame({ opstep: "hello", dark: dark() });
    window.setTimeout(hello, HELLO_MS);
  }
}

function postToFrame(message: { opstep: string } & Record<string, unknown>): void {
  frame?.contentWindow?.postMessage(message, origin);
}

function dark(): boolean {
  const { classList } = document.body;
  const light =
    classList.contains("vscode-light") || classList.contains("vscode-high-contrast-light");
  return !light;
}

new MutationObserver(() => postToFrame({ opstep: "theme", dark: dark() })).observe(document.body, {
  attributes: true,
  attributeFilter: ["class"],
});

function fromFrame(message: FrameMessage): void {
  answered = true;
  switch (message.opstep) {
    case "ready":
      if (!loaded) {
        loaded = true;
        main.classList.remove("covered");
        setBar("");
        post({ kind: "loaded" });
        if (pending !== undefined) {
          find(pending);
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
      setBar(message.text, [close]);
      break;
    case "key":
      // VS Code listens for keys of the page, and not of frames in it.
      window.dispatchEvent(new KeyboardEvent("keydown", { ...message, bubbles: true }));
      break;
  }
}

// --- slices of a line ---

function find(query: LineQuery): void {
  if (!loaded) {
    pending = query;
    return;
  }
  pending = undefined;
  request += 1;
  lastQuery = query;
  const { file, line, text } = query;
  postToFrame({ opstep: "find", request, file, line, text });
}
let lastQuery: LineQuery = { file: "", line: 0, text: "" };

function show(found: LineSlice[], index: number): void {
  slices = found;
  at = Math.min(index, found.length - 1);
  const slice = slices[at];
  if (slice !== undefined) {
    setBar(describeSlice(slices, at), found.length > 1 ? [before, after, close] : [close]);
    postToFrame({ opstep: "select", id: slice.id, zoom: true });
  } else if (index >= 0) {
    const file = lastQuery.file.split(/[\\/]/).at(-1);
    setBar(`${file}:${lastQuery.line} did not run in this timeline`, [close]);
  } else {
    setBar("");
  }
}

function go(by: number): void {
  show(slices, nextIndex(slices.length, at, by));
}

window.addEventListener("message", ({ data, source }: MessageEvent<HostMessage | FrameMessage>) => {
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
    setBar(data.text, data.kind === "failed" ? [again] : [again, close]);
  }
});

/** Who stands around the page: only they may have Perfetto in a frame. */
function embedders(): string[] {
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

post({ kind: "ready", origins: embedders() });
