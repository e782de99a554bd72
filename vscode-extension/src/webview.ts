/** Panels: a page of our own with a strict policy, and messages both ways. */

import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import * as vscode from "vscode";
import { divide, roomColumn } from "./room";

interface PanelOptions {
  /** The folder below webview/, which names the bundle. */
  name: string;
  title: string;
  /** A panel that came back with its window (see `onRestore`). */
  panel?: vscode.WebviewPanel;
  /** More of the Content Security Policy: `frame-src http://127.0.0.1:1234`. */
  policy?: string;
  /** Whether script and style stand in the page: it is there sooner, as nothing is loaded. */
  inline?: boolean;
  /** Folders whose files the page may load, beside its bundle. */
  roots?: vscode.Uri[];
}

function open(
  { name, title }: PanelOptions,
  settings: vscode.WebviewPanelOptions & vscode.WebviewOptions,
): vscode.WebviewPanel {
  const where = { viewColumn: roomColumn(), preserveFocus: true };
  return vscode.window.createWebviewPanel(`opstep.${name}`, title, where, settings);
}

/** What every page tells of itself, before its own script and whenever it is resized. */
interface Sized {
  sized: { width: number; height: number };
  /** The view was just opened or brought to the front: not one that came back with its window. */
  shown: boolean;
}

const tellSize = (shown: boolean) => `{
  const api = acquireVsCodeApi();
  let timer, shown = ${shown};
  const tell = () => {
    api.postMessage({ sized: { width: innerWidth, height: innerHeight }, shown });
    shown = false;
  };
  const tellSoon = () => { clearTimeout(timer); timer = setTimeout(tell, 300); };
  globalThis.acquireVsCodeApi = () => api;
  addEventListener("resize", tellSoon);
  addEventListener("message", (event) => {
    if (event.data?.askSize) {
      event.stopImmediatePropagation();
      shown = true;
      tellSoon();
    }
  });
  tell();
}`;

function isSized(message: unknown): message is Sized {
  return typeof message === "object" && message !== null && "sized" in message;
}

/** A panel. `In` are the messages that its page sends, `Out` those that it takes. */
export class Panel<In, Out> implements vscode.Disposable {
  readonly panel: vscode.WebviewPanel;
  private readonly closed = new vscode.EventEmitter<void>();
  private readonly received = new vscode.EventEmitter<In>();
  readonly onDidDispose = this.closed.event;
  readonly onMessage = this.received.event;

  private readonly dist: vscode.Uri;

  constructor(
    context: vscode.ExtensionContext,
    private readonly options: PanelOptions,
  ) {
    const dist = vscode.Uri.joinPath(context.extensionUri, "dist", "webview");
    this.dist = dist;
    const settings: vscode.WebviewPanelOptions & vscode.WebviewOptions = {
      enableScripts: true,
      enableCommandUris: false,
      localResourceRoots: [dist, ...(options.roots ?? [])],
      retainContextWhenHidden: true,
    };
    this.panel = options.panel ?? open(options, settings);
    this.panel.webview.options = settings;
    this.panel.iconPath = vscode.Uri.joinPath(context.extensionUri, "media", "file.svg");
    this.panel.webview.html = page(this.panel.webview, dist, options);
    this.panel.webview.onDidReceiveMessage((message: In | Sized) => {
      if (isSized(message)) {
        const view = { ...message.sized, column: this.panel.viewColumn };
        void divide(context.workspaceState, view, message.shown);
      } else {
        this.received.fire(message);
      }
    });
    this.panel.onDidDispose(() => {
      this.closed.fire();
      this.closed.dispose();
      this.received.dispose();
    });
  }

  /** Loads the page again under a policy that allows more: `frame-src http://127.0.0.1:1234`. */
  allow(policy: string): void {
    this.panel.webview.html = page(this.panel.webview, this.dist, { ...this.options, policy });
  }

  get title(): string {
    return this.panel.title;
  }

  set title(text: string) {
    this.panel.title = text;
  }

  /** Sends a message to the page; false where the page is gone. */
  post(message: Out): Thenable<boolean> {
    return this.panel.webview.postMessage(message);
  }

  /** Brings the panel to the front, where it is. */
  reveal(preserveFocus = true): void {
    this.panel.reveal(undefined, preserveFocus);
    void this.panel.webview.postMessage({ askSize: true });
  }

  dispose(): void {
    this.panel.dispose();
  }
}

/** Makes panels of one kind again after the window was reloaded; `state` is what the page kept with `setState`. */
export function onRestore<State>(
  name: string,
  restore: (panel: vscode.WebviewPanel, state: State | undefined) => void | Promise<void>,
): vscode.Disposable {
  return vscode.window.registerWebviewPanelSerializer(`opstep.${name}`, {
    async deserializeWebviewPanel(panel, state) {
      await restore(panel, state as State | undefined);
    },
  });
}

function page(webview: vscode.Webview, dist: vscode.Uri, options: PanelOptions): string {
  const nonce = randomBytes(16).toString("base64url");
  const inline = (extension: string) =>
    readFileSync(
      vscode.Uri.joinPath(dist, `${options.name}.${extension}`).fsPath,
      "utf8",
    ).replaceAll("</script", "<\\/script");
  const source = (extension: string) =>
    webview.asWebviewUri(vscode.Uri.joinPath(dist, `${options.name}.${extension}`)).toString();
  const policy = [
    "default-src 'none'",
    `script-src 'nonce-${nonce}'`,
    // The pages set sizes and colours of elements from script, which is inline style.
    `style-src ${webview.cspSource} 'unsafe-inline'`,
    `img-src ${webview.cspSource} data: blob:`,
    `font-src ${webview.cspSource}`,
    "worker-src blob:",
    ...(options.policy ? [options.policy] : []),
  ].join("; ");
  return `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${escapeHtml(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(options.title)}</title>
${options.inline ? `<style>${inline("css")}</style>` : `<link rel="stylesheet" href="${source("css")}">`}
</head>
<body>
<div id="root"></div>
<script nonce="${nonce}">${tellSize(!options.panel)}</script>
${
  options.inline
    ? `<script nonce="${nonce}">${inline("js")}</script>`
    : `<script nonce="${nonce}" src="${source("js")}"></script>`
}
</body>
</html>`;
}

/** Text as it may stand in HTML, also in attributes. */
function escapeHtml(text: string): string {
  return text
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;")
    .replaceAll("'", "&#39;");
}
