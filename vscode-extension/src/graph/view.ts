/** The Graph view: the data flow of a graph, beside its text. */

import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import { counted } from "../../shared/format";
import { callName, callsOf, purpose, sameCall } from "../../shared/frames";
import type {
  GraphData,
  HostMessage,
  PageMessage,
  PageState,
  PathEntry,
} from "../../shared/graph/messages";
import { programOf, Sizes } from "../debug/prompts";
import { askSavePath, type Filters } from "../dialogs";
import { showLine } from "../editor";
import { graphInViewOrPicked, showsGraph } from "../inView";
import { nanPath, onNanPath } from "../nan/current";
import type { Services, Stop } from "../services";
import { stackOf } from "../stops";
import { onRestore, Panel } from "../webview";
import { breakpoints, toggle } from "./breakpoints";
import { streamsOf } from "./streams";
import { FrameValues } from "./values";

const TYPING_MS = 200;
const TYPING_LARGE_MS = 1000; // of graphs that take the server a while
const LARGE = 2000; // nodes
const CURSOR_MS = 60;

/** A graph of a file, as commands are given it. */
interface Target {
  uri: string;
  graph?: string;
}

export function register(services: Services): vscode.Disposable {
  const view = new GraphView(services);
  return vscode.Disposable.from(
    view,
    showsGraph(() => view.shown()),
    vscode.commands.registerCommand("opstep.openGraph", async (target?: unknown, graph?: unknown) =>
      view.open(targetOf(target, graph) ?? (await inView())),
    ),
    onRestore<PageState>("graph", (panel, state) => view.restore(panel, state ?? {})),
  );
}

/** What a menu, a code lens or another part gives: a URI or its text, with a graph or without. */
function targetOf(target: unknown, graph: unknown): Target | undefined {
  const name = typeof graph === "string" ? graph : undefined;
  if (target instanceof vscode.Uri || typeof target === "string") {
    return { uri: target.toString(), graph: name };
  }
  if (typeof target === "object" && target !== null && "uri" in target) {
    const { uri, graph: inside } = target as { uri: unknown; graph?: unknown };
    return { uri: String(uri), graph: typeof inside === "string" ? inside : name };
  }
  const document = vscode.window.activeTextEditor?.document;
  return document?.languageId === "opg" ? { uri: document.uri.toString() } : undefined;
}

async function inView(): Promise<Target | undefined> {
  const file = await graphInViewOrPicked();
  return file ? { uri: vscode.Uri.file(file).toString() } : undefined;
}

class GraphView implements vscode.Disposable {
  private panel: Panel<PageMessage, HostMessage> | undefined;
  private readonly disposables: vscode.Disposable[];
  private ready = false;
  private pending: Target | undefined;
  private data: GraphData | undefined;
  /** Where each graph on the path is: the last one is shown. */
  private path: PathEntry[] = [];
  private following = true;
  private values: FrameValues | undefined;
  private requests = 0;
  private typing: NodeJS.Timeout | undefined;
  private moving: NodeJS.Timeout | undefined;

  private readonly sizes: Sizes;

  constructor(private readonly services: Services) {
    this.sizes = new Sizes(services.context.workspaceState);
    this.disposables = [
      services.onStop((stop) => void this.stopped(stop)),
      onNanPath(() => this.postTaint()),
      vscode.debug.onDidChangeBreakpoints(() =>
        this.post({ kind: "breakpoints", byUri: breakpoints() }),
      ),
      vscode.workspace.onDidChangeTextDocument(({ document }) => this.typed(document)),
      vscode.window.onDidChangeTextEditorSelection(({ textEditor }) => this.moved(textEditor)),
      vscode.window.onDidChangeActiveTextEditor((editor) => editor && this.moved(editor)),
    ];
  }

  dispose(): void {
    clearTimeout(this.typing);
    clearTimeout(this.moving);
    vscode.Disposable.from(...this.disposables).dispose();
    this.panel?.dispose();
  }

  /** The file whose graph is in the view. */
  shown(): { file: string; active: boolean; visible: boolean } | undefined {
    const uri = this.data && vscode.Uri.parse(this.data.uri);
    const panel = this.panel?.panel;
    return panel && uri?.scheme === "file"
      ? { file: uri.fsPath, active: panel.active, visible: panel.visible }
      : undefined;
  }

  async open(target: Target | undefined): Promise<void> {
    if (target === undefined) {
      return; // none was picked
    }
    const { uri, graph } = target;
    if (this.panel === undefined) {
      this.pending = target;
      this.adopt(new Panel(this.services.context, { name: "graph", title: "Graph" }));
      return;
    }
    this.panel.reveal();
    await this.show({ uri, graph, ...this.at(uri, graph) });
  }

  restore(panel: vscode.WebviewPanel, state: PageState): void {
    this.panel?.dispose();
    this.following = state.follow ?? true;
    this.pending = state.uri === undefined ? undefined : { uri: state.uri, graph: state.graph };
    this.adopt(new Panel(this.services.context, { name: "graph", title: "Graph", panel }));
  }

  private adopt(panel: Panel<PageMessage, HostMessage>): void {
    this.panel = panel;
    this.ready = false;
    panel.onMessage((message) => {
      Promise.resolve(this.receive(message)).catch((error) => this.failed(error));
    });
    panel.onDidDispose(() => {
      if (this.panel === panel) {
        this.panel = undefined;
        this.data = this.values = undefined;
        this.path = [];
      }
    });
  }

  private post(message: HostMessage): void {
    if (this.ready) {
      void this.panel?.post(message);
    }
  }

  private failed(error: unknown): void {
    const text = messageOf(error);
    this.services.log.warn(`graph view: ${text}`);
    this.post({ kind: "failed", text });
  }

  // --- which graph ---

  /** The cursor's line, where the editor in front has the file and no graph was named. */
  private at(uri: string, graph: string | undefined): { line?: number } {
    const editor = vscode.window.visibleTextEditors.find((e) => e.document.uri.toString() === uri);
    return graph === undefined && editor ? { line: editor.selection.active.line } : {};
  }

  /** Shows a graph; `path` leads to it from what was shown. */
  private async show(
    what: { uri: string; graph?: string; line?: number },
    path: (here: PathEntry) => PathEntry[] = (here) => [here],
  ): Promise<void> {
    this.requests += 1;
    const request = this.requests;
    let data: GraphData;
    try {
      data = await this.services.request<GraphData>("opstep/graph", what);
    } catch (error) {
      if (request === this.requests) {
        this.failed(error);
      }
      return;
    }
    if (request !== this.requests || this.panel === undefined) {
      return;
    }
    this.path = path({ graph: data.graph, uri: data.uri });
    this.data = data;
    this.panel.title = `Graph: ${callName(data.graph, this.path.at(-1)?.call)}`;
    const line = this.cursorIn(data);
    this.post({ kind: "graph", data, path: this.path, line });
    this.post({ kind: "breakpoints", byUri: breakpoints() });
    this.postTaint();
    this.postStop();
  }

  /** In place of the graph that is shown. */
  private readonly instead = (here: PathEntry): PathEntry[] => {
    const { call } = this.path.at(-1) ?? {};
    return [...this.path.slice(0, -1), { ...here, call }];
  };

  /** Up or down the path where the graph is part of it, else from the start. */
  private readonly along = (here: PathEntry): PathEntry[] => {
    const at = this.path.findIndex((p) => p.graph === here.graph && p.uri === here.uri);
    if (at >= 0) {
      return this.path.slice(0, at + 1);
    }
    const [caller, ...more] = (this.data?.nodes ?? []).filter((n) => n.calls.includes(here.graph));
    const only = caller?.kind === "call" && more.length === 0;
    const call = only ? purpose(caller) : undefined; // of several it may be any
    return caller === undefined ? [here] : [...this.path, { ...here, call }];
  };

  private cursorIn(data: GraphData): number | null {
    const editor = vscode.window.visibleTextEditors.find(
      (e) => e.document.uri.toString() === data.uri,
    );
    const line = editor?.selection.active.line;
    const [first, last] = data.lines;
    return line !== undefined && first <= line && line <= last ? line : null;
  }

  // --- events of the editor ---

  private typed(document: vscode.TextDocument): void {
    const { data } = this;
    if (this.panel !== undefined && data !== undefined && document.uri.toString() === data.uri) {
      clearTimeout(this.typing);
      const pause = data.nodes.length > LARGE ? TYPING_LARGE_MS : TYPING_MS;
      this.typing = setTimeout(() => void this.refresh(data), pause);
    }
  }

  /** The graph as it is now; the one at its place where it was renamed. */
  private async refresh(data: GraphData): Promise<void> {
    const { uri, graph, lines } = data;
    const there = await this.services
      .request<GraphData>("opstep/graph", { uri, line: lines[0] })
      .catch(() => undefined);
    const renamed = there !== undefined && !there.graphs.includes(graph);
    await this.show({ uri, graph: renamed ? there.graph : graph }, this.instead);
  }

  private moved(editor: vscode.TextEditor): void {
    if (this.panel === undefined || editor.document.languageId !== "opg") {
      return;
    }
    clearTimeout(this.moving);
    this.moving = setTimeout(() => {
      const uri = editor.document.uri.toString();
      const { line } = editor.selection.active;
      const [first, last] = this.data?.lines ?? [0, -1];
      if (this.data?.uri === uri && first <= line && line <= last) {
        this.post({ kind: "cursor", uri, line });
      } else if (this.following) {
        void this.follow(uri, line);
      }
    }, CURSOR_MS);
  }

  /** The graph at a line, if it is another one. */
  private async follow(uri: string, line: number): Promise<void> {
    const found = await this.services
      .request<GraphData>("opstep/graph", { uri, line })
      .catch(() => undefined);
    const inside = found && found.lines[0] <= line && line <= found.lines[1];
    if (inside && (found.uri !== this.data?.uri || found.graph !== this.data.graph)) {
      await this.show({ uri, graph: found.graph }, this.along);
    }
  }

  // --- events of the debugger ---

  private async stopped(stop: Stop | undefined): Promise<void> {
    this.values = undefined;
    if (this.panel === undefined || stop === undefined) {
      this.postStop();
      return;
    }
    const values = new FrameValues(stop);
    try {
      await values.read();
    } catch (error) {
      this.services.log.debug(`graph view: ${error}`); // it went on meanwhile
      return;
    }
    if (this.services.stop !== stop) {
      return;
    }
    this.values = values;
    const uri = vscode.Uri.file(stop.path).toString();
    const graph = this.data?.graph === stop.graph && this.data.uri === uri;
    const call = this.path.at(-1)?.call === stop.calls.at(-1);
    const there = graph && call && sameCall(callsOf(this.path), stop.calls);
    if (this.following && !there && stop.path !== "") {
      const path = pathOf(await stackOf(stop), stop);
      await this.show({ uri, graph: stop.graph }, () => path);
    } else {
      this.postStop();
    }
  }

  /** Colours the way that NaNs took, as the last report has it. */
  private postTaint(): void {
    const found = nanPath();
    if (found === undefined) {
      this.post({ kind: "tainted", tainted: null });
      return;
    }
    const { path, lines, calls } = found;
    const reasons = [
      ...calls.map((line) => [line - 1, "NaN in the called graph"]),
      ...lines.map((line, k) => [line - 1, k === 0 ? "NaN starts here" : "NaN propagates here"]),
    ];
    const uri = vscode.Uri.file(path).toString();
    this.post({ kind: "tainted", tainted: { uri, lines: Object.fromEntries(reasons) } });
  }

  /** Tells the page where the run stands; not before its values are known. */
  private postStop(): void {
    const { stop } = this.services;
    if (stop === undefined || this.values === undefined) {
      this.post({ kind: "stop", stop: null });
      return;
    }
    const { path, graph, line, reason, calls } = stop;
    const uri = vscode.Uri.file(path).toString();
    const values = this.values.lines;
    this.post({ kind: "stop", stop: { uri, graph, calls, line: line - 1, reason, values } });
  }

  // --- messages from the page ---

  private async receive(message: PageMessage): Promise<void> {
    switch (message.kind) {
      case "ready":
        await this.begin();
        break;
      case "goto":
        await showLine(vscode.Uri.parse(message.uri), message.line, message);
        break;
      case "enter":
        await this.enter(message.path);
        break;
      case "back": {
        const to = this.path[message.to];
        if (to !== undefined) {
          await this.show(to, () => this.path.slice(0, message.to + 1));
        }
        break;
      }
      case "choose":
        await this.show({ uri: this.data?.uri ?? "", graph: message.graph });
        break;
      case "expand": {
        const { key, uri, graph } = message;
        const data = await this.services.request<GraphData>("opstep/graph", { uri, graph });
        this.post({ kind: "expanded", key, data });
        break;
      }
      case "breakpoint":
        toggle(vscode.Uri.parse(message.uri), message.line, message.last);
        break;
      case "inspect": {
        const text = await this.values?.whole(message.name);
        if (text !== undefined) {
          this.post({ kind: "value", name: message.name, text });
        }
        break;
      }
      case "tensor":
        await vscode.commands.executeCommand("opstep.openTensor", message.name);
        break;
      case "streams":
        await this.streams(message.on);
        break;
      case "follow":
        this.following = message.on;
        break;
      case "export":
        await this.saveImage(message.format, message.data);
        break;
    }
  }

  /** Into a call: `path` has those around it that are open in place, and it last. */
  private async enter(path: PathEntry[]): Promise<void> {
    const last = path.at(-1);
    if (last !== undefined) {
      const before = [...this.path, ...path.slice(0, -1)];
      await this.show(last, (here) => [...before, { ...here, call: last.call }]);
    }
  }

  private async begin(): Promise<void> {
    this.ready = true;
    if (this.pending !== undefined) {
      const { uri, graph } = this.pending;
      await this.show({ uri, graph, ...this.at(uri, graph) });
    }
    const { stop } = this.services;
    if (stop !== undefined) {
      await this.stopped(stop);
    }
  }

  private async streams(on: boolean): Promise<void> {
    if (!on || this.data === undefined) {
      this.post({ kind: "streams", byLine: null, text: "" });
      return;
    }
    const text = (await this.plannedHere()) ?? (await this.planned(this.data));
    const byLine = text === undefined ? undefined : streamsOf(text, this.data.graph);
    const count = new Set(Object.values(byLine ?? {})).size;
    this.post({
      kind: "streams",
      byLine: byLine ?? null,
      text: byLine ? counted(count, "stream") : "",
    });
  }

  /** The plan that is being debugged, if the graph is in it. */
  private async plannedHere(): Promise<string | undefined> {
    const { stop } = this.services;
    if (stop === undefined) {
      return undefined;
    }
    const { frameId } = stop;
    const plan = (await stop.session.customRequest("opstep/plan", { frameId })) as { text: string };
    return streamsOf(plan.text, this.data?.graph ?? "") === undefined ? undefined : plan.text;
  }

  /** A plan for sizes that are asked for. */
  private async planned(data: GraphData): Promise<string | undefined> {
    const uri = vscode.Uri.parse(data.uri);
    const program = await programOf(uri.fsPath);
    const head = program.graphs.find((graph) => graph.name === data.graph);
    // The plan, and with it the streams, depends on the sizes of the inputs.
    const chosen = head && (await this.sizes.of(uri.fsPath, head, {}));
    if (chosen === undefined) {
      return undefined;
    }
    const args = ["plan", uri.fsPath, "--graph", data.graph, "--mode", "async"];
    for (const [name, size] of Object.entries(chosen.sizes)) {
      args.push("--symbol", `${name}=${size}`);
    }
    const { code, stdout, stderr } = await this.services.opstep(args);
    if (code !== 0) {
      throw new Error(`Cannot colour by stream without a plan: ${stderr.trim() || stdout.trim()}`);
    }
    return stdout;
  }

  private async saveImage(format: "svg" | "png", data: string): Promise<void> {
    const { uri = "", graph = "graph" } = this.data ?? {};
    const folder = vscode.Uri.joinPath(vscode.Uri.parse(uri), "..");
    const filters: Filters =
      format === "svg" ? { "SVG picture": ["svg"] } : { "PNG picture": ["png"] };
    const file = await askSavePath(`${graph}.${format}`, { folder, filters });
    if (file !== undefined) {
      const content = format === "svg" ? Buffer.from(data) : Buffer.from(data, "base64");
      await vscode.workspace.fs.writeFile(file, content);
      vscode.window.setStatusBarMessage(`Saved ${file.fsPath}`, 5000);
    }
  }
}

/** The path to a stop's frame; loops are for nothing, so no call leads to their graphs. */
function pathOf(stack: Awaited<ReturnType<typeof stackOf>>, { frameId }: Stop): PathEntry[] {
  const innermost = stack.findIndex((frame) => frame.id === frameId);
  return stack
    .slice(Math.max(0, innermost))
    .reverse()
    .map(({ graph, path, calls }) => {
      return { graph, uri: vscode.Uri.file(path).toString(), call: calls.at(-1) };
    });
}
