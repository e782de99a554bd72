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
import { isScript } from "../debug/launch";
import { Sizes } from "../debug/prompts";
import { showLine } from "../editor";
import { showsGraph } from "../inView";
import { nanPath, onNanPath } from "../nan/current";
import type { Services, Stop } from "../services";
import { inText, stackOf } from "../stops";
import { onRestore, Panel } from "../webview";
import { breakpoints, toggle } from "./breakpoints";
import { registerModels } from "./models";
import { planned, saveImage } from "./outputs";
import { streamsOf } from "./streams";
import { inView, type Target, targetOf } from "./target";
import { FrameValues } from "./values";

const TYPING_MS = 200;
const TYPING_LARGE_MS = 1000; // of graphs that take the server a while
const LARGE = 2000; // nodes
const CURSOR_MS = 60;

export function register(services: Services): vscode.Disposable {
  const view = new GraphView(services);
  return vscode.Disposable.from(
    registerModels(services),
    view,
    showsGraph(() => view.shown()),
    vscode.commands.registerCommand("opstep.openGraph", async (target?: unknown, graph?: unknown) =>
      view.openAt(targetOf(target, graph)),
    ),
    onRestore<PageState>("graph", (panel, state) => view.restore(panel, state ?? {})),
  );
}

export class GraphView implements vscode.Disposable {
  private panel: Panel<PageMessage, HostMessage> | undefined;
  private readonly disposables: vscode.Disposable[];
  private ready = false;
  private pending: Target | Promise<Target> | undefined;
  /** The file of a model whose program this is: it has a view of its own, which follows nothing. */
  private model: string | undefined;
  private data: GraphData | undefined;
  /** Where a script stands, whose graph is shown. */
  private script: Stop | undefined;
  /** Where each graph on the path is: the last one is shown. */
  private path: PathEntry[] = [];
  private following = true;
  private values: FrameValues | undefined;
  /** Where the run stands, as far as a file shows it; `values` are those of that frame. */
  private place: Stop | undefined;
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
    return panel && !this.script && uri?.scheme === "file"
      ? { file: uri.fsPath, active: panel.active, visible: panel.visible }
      : undefined;
  }

  /** Of what is meant: a graph; else what has run of the script that stands; else what is picked. */
  async openAt(target: Target | undefined): Promise<void> {
    const { stop } = this.services;
    const isScript = target === undefined && stop?.isScript === true;
    this.script = isScript ? stop : undefined;
    await this.open(isScript ? { uri: "" } : (target ?? (await inView())));
  }

  private async open(target: Target | undefined): Promise<void> {
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
    if (state.uri && isScript(vscode.Uri.parse(state.uri).path)) {
      panel.dispose(); // of a run that is over
      return;
    }
    this.panel?.dispose();
    this.following = state.follow ?? true;
    this.pending = state.uri === undefined ? undefined : { uri: state.uri, graph: state.graph };
    this.adopt(new Panel(this.services.context, { name: "graph", title: "Graph", panel }));
  }

  /** In a panel of its own, once the model has been translated to a program. */
  showModel(panel: vscode.WebviewPanel, name: string, uri: Promise<string>): void {
    this.following = false;
    this.model = name;
    this.pending = uri.then((found) => ({ uri: found }));
    this.pending.catch(() => undefined); // said when the page is there
    this.adopt(new Panel(this.services.context, { name: "graph", title: name, panel }));
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

  /** Of a script the debugger has it, as far as it has run. */
  private async request(what: { uri: string; graph?: string; line?: number }): Promise<GraphData> {
    const { script } = this;
    if (script === undefined) {
      return await this.services.request<GraphData>("opstep/graph", what);
    }
    const { frameId } = script;
    return await script.session.customRequest("opstep/graph", { frameId, graph: what.graph });
  }

  /** The cursor's line, where the editor in front has the file and no graph was named. */
  private at(uri: string, graph: string | undefined): { line?: number } {
    const editor = vscode.window.visibleTextEditors.find((e) => e.document.uri.toString() === uri);
    return graph === undefined && editor && uri ? { line: editor.selection.active.line } : {};
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
      data = await this.request(what);
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
    this.panel.title = this.model ?? `Graph: ${callName(data.graph, this.path.at(-1)?.call)}`;
    const line = this.cursorIn(data);
    this.post({ kind: "graph", data, path: this.path, line });
    if (this.model !== undefined) {
      void this.postLibrary(data);
    }
    this.post({ kind: "breakpoints", byUri: breakpoints() });
    this.postTaint();
    this.postStop();
  }

  /** All graphs of a model: what is in its modules is found without opening them. */
  private async postLibrary({ uri, graphs }: GraphData): Promise<void> {
    const all = graphs.map((graph) =>
      this.services.request<GraphData>("opstep/graph", { uri, graph }),
    );
    this.post({ kind: "library", graphs: await Promise.all(all) });
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
    const data = this.script ? undefined : this.data;
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
    if (this.panel === undefined || this.script || editor.document.languageId !== "opg") {
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
    if (this.script) {
      await this.scriptStopped(stop);
      return;
    }
    if (this.panel === undefined || stop === undefined || stop.isScript) {
      this.postStop();
      return;
    }
    let [place, values] = [stop, new FrameValues(stop)];
    try {
      place = await inText(stop);
      values = await new FrameValues(place).read();
    } catch (error) {
      this.services.log.debug(`graph view: ${error}`); // it went on meanwhile
      return;
    }
    if (this.services.stop !== stop) {
      return;
    }
    this.values = values;
    this.place = place;
    const uri = vscode.Uri.file(place.path).toString();
    const graph = this.data?.graph === place.graph && this.data.uri === uri;
    const call = this.path.at(-1)?.call === place.calls.at(-1);
    const there = graph && call && sameCall(callsOf(this.path), place.calls);
    if (this.following && !there && place.path !== "") {
      const path = pathOf(await stackOf(place), place);
      await this.show({ uri, graph: place.graph }, () => path);
    } else {
      this.postStop();
    }
  }

  /** The graph of a script is what led to where it stands: at each stop another one. */
  private async scriptStopped(stop: Stop | undefined): Promise<void> {
    if (this.panel === undefined || !stop?.isScript || !this.following) {
      this.postStop();
      return;
    }
    this.script = stop;
    this.post({ kind: "stop", stop: null }); // until it is known where in the graph
    await this.show({ uri: "" });
  }

  /** Colours the way that NaNs took, as the last report has it. */
  private postTaint(): void {
    const found = this.script ? undefined : nanPath(); // a line of a script runs many ops
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
    if (this.script && stop && this.data && stop.frameId === this.script.frameId) {
      const { uri, graph } = this.data;
      const there = { uri, graph, calls: [], line: -1, reason: stop.reason, values: {} };
      this.post({ kind: "stop", stop: there });
      return;
    }
    if (stop === undefined || this.values === undefined || this.place === undefined) {
      this.post({ kind: "stop", stop: null });
      return;
    }
    const { path, graph, line, reason, calls } = this.place;
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
        const data = await this.request({ uri, graph });
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
        await saveImage(this.data, message.format, message.data);
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
    if (this.model !== undefined) {
      this.post({ kind: "failed", text: `Reading ${this.model} …` });
    }
    if (this.pending !== undefined) {
      const { uri, graph } = await this.pending;
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
    const text =
      (await this.plannedHere()) ?? (await planned(this.services, this.sizes, this.data));
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
