/** The Timeline view: Perfetto on a trace, as the editor of `.pftrace` files. */

import path from "node:path";
import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import type { HostMessage, LineQuery, PageMessage, Slice } from "../../shared/timeline/messages";
import { browse } from "../dialogs";
import { showLine } from "../editor";
import { roomColumn } from "../room";
import type { Services } from "../services";
import { worked } from "../walkthrough";
import { Panel } from "../webview";
import { candidatePaths, findStatement, textFrom } from "./statements";

const TYPE = "opstep.timelineEditor";
const OPEN = "opstep.timelineOpen"; // a context key: menus look at it
const QUIET_MS = 700; // after the last change of a file, until it is said

export function register(services: Services): vscode.Disposable {
  const timelines = new Timelines(services);
  const command = (name: string, act: (...args: unknown[]) => Promise<void>) =>
    vscode.commands.registerCommand(name, (...args: unknown[]) =>
      act(...args).catch((error) => {
        services.log.warn(`timeline: ${error}`);
        void vscode.window.showErrorMessage(messageOf(error));
      }),
    );
  return vscode.Disposable.from(
    vscode.window.registerCustomEditorProvider(TYPE, timelines, {
      webviewOptions: { retainContextWhenHidden: true },
      supportsMultipleEditorsPerDocument: false,
    }),
    command("opstep.openTimeline", (file) => timelines.open(file)),
    command("opstep.showInTimeline", (uri, line) => timelines.find(uri, line)),
    offerTimelines(),
  );
}

/** Offers the timeline when a run with one has ended. */
function offerTimelines(): vscode.Disposable {
  const offer = async (file: string) => {
    const uri = vscode.Uri.file(file);
    try {
      await vscode.workspace.fs.stat(uri);
    } catch {
      return; // the run ended before it wrote anything, and has said why
    }
    const name = path.basename(file);
    const answer = await vscode.window.showInformationMessage(`Wrote ${name}.`, "Open Timeline");
    if (answer !== undefined) {
      await vscode.commands.executeCommand("opstep.openTimeline", uri);
    }
  };
  const absolute = (file: string, folder: string | undefined) => path.resolve(folder ?? "", file);
  const first = () => vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  return vscode.Disposable.from(
    vscode.tasks.onDidEndTaskProcess(({ execution: { task }, exitCode }) => {
      const { definition, execution } = task;
      const options: unknown = definition.args;
      if (definition.type !== "opstep" || !Array.isArray(options) || exitCode === undefined) {
        return;
      }
      const at = options.indexOf("--trace");
      const file: unknown = at < 0 ? undefined : options[at + 1];
      if (typeof file === "string") {
        const options =
          execution instanceof vscode.ProcessExecution ? execution.options : undefined;
        void offer(absolute(file, options?.cwd ?? first()));
      }
    }),
    vscode.debug.onDidTerminateDebugSession(({ type, configuration }) => {
      const { trace, noDebug, cwd } = configuration as Record<string, unknown>;
      if (type === "opstep" && noDebug && typeof trace === "string") {
        void offer(absolute(trace, typeof cwd === "string" ? cwd : first()));
      }
    }),
  );
}

class Timelines implements vscode.CustomReadonlyEditorProvider {
  private readonly editors = new Set<Timeline>();
  private last: Timeline | undefined;
  private pending: { uri: string; find: LineQuery } | undefined;

  constructor(private readonly services: Services) {}

  openCustomDocument(uri: vscode.Uri): vscode.CustomDocument {
    return { uri, dispose: () => undefined };
  }

  resolveCustomEditor(document: vscode.CustomDocument, panel: vscode.WebviewPanel): void {
    const timeline = new Timeline(this.services, document.uri, panel);
    this.editors.add(timeline);
    this.last = timeline;
    this.updateContext();
    panel.onDidChangeViewState(() => {
      if (panel.active) {
        this.last = timeline;
      }
    });
    panel.onDidDispose(() => {
      this.editors.delete(timeline);
      this.last = this.last === timeline ? [...this.editors].at(-1) : this.last;
      this.updateContext();
    });
    if (this.pending?.uri === document.uri.toString()) {
      timeline.find(this.pending.find);
      this.pending = undefined;
    }
  }

  private updateContext(): void {
    void vscode.commands.executeCommand("setContext", OPEN, this.editors.size > 0);
  }

  /** Opens a trace: the one that is args, one of the workspace, or one that is picked. */
  async open(argument: unknown): Promise<void> {
    const uri = argument instanceof vscode.Uri ? argument : await this.pick();
    if (uri !== undefined) {
      await vscode.commands.executeCommand("vscode.openWith", uri, TYPE, roomColumn());
      worked("timeline");
    }
  }

  private async pick(): Promise<vscode.Uri | undefined> {
    const files = await vscode.workspace.findFiles("**/*.pftrace", "**/node_modules/**", 200);
    const times = await Promise.all(
      files.map(async (file) => (await vscode.workspace.fs.stat(file)).mtime),
    );
    const newest = files
      .map((uri, k) => ({ uri, time: times[k] ?? 0 }))
      .sort((a, b) => b.time - a.time);
    const items: (vscode.QuickPickItem & { uri?: vscode.Uri })[] = newest.map(({ uri, time }) => ({
      label: vscode.workspace.asRelativePath(uri),
      description: new Date(time).toLocaleString(),
      uri,
    }));
    items.push({ label: "$(folder-opened) Another file …" });
    const chosen =
      newest.length === 0
        ? items[0]
        : await vscode.window.showQuickPick(items, { title: "Timeline" });
    if (chosen === undefined || chosen.uri !== undefined) {
      return chosen?.uri;
    }
    return browse("Timeline: opstep run … --trace FILE.pftrace writes one", {
      Timelines: ["pftrace"],
    });
  }

  /** Selects what a line ran as: the cursor's, that of the debugger, or one that is args. */
  async find(argument: unknown, at: unknown): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    const { stop } = this.services;
    let file: string | undefined;
    let line: number | undefined;
    if (argument instanceof vscode.Uri && typeof at === "number") {
      [file, line] = [argument.fsPath, at + 1];
    } else if (editor?.document.languageId === "opg") {
      [file, line] = [editor.document.uri.fsPath, editor.selection.active.line + 1];
    } else if (stop !== undefined) {
      [file, line] = [stop.path, stop.line];
    }
    if (file === undefined || line === undefined) {
      void vscode.window.showInformationMessage("Place the cursor on a line of a graph first.");
      return;
    }
    const document = await vscode.workspace.openTextDocument(vscode.Uri.file(file));
    const query = { file, line, text: textFrom(document.getText(), line - 1) };
    if (this.last === undefined) {
      const uri = await this.pick();
      if (uri !== undefined) {
        this.pending = { uri: uri.toString(), find: query };
        await this.open(uri);
      }
      return;
    }
    this.last.find(query);
  }
}

/** One trace in one tab. */
class Timeline {
  private readonly panel: Panel<PageMessage, HostMessage>;
  private address: string | undefined;
  private number: number | undefined;
  private loaded = false;
  private pending: LineQuery | undefined;
  private changed: NodeJS.Timeout | undefined;

  constructor(
    private readonly services: Services,
    private readonly uri: vscode.Uri,
    panel: vscode.WebviewPanel,
  ) {
    const title = path.basename(uri.fsPath);
    this.panel = new Panel(services.context, { name: "timeline", title, panel });
    this.panel.onMessage((message) => void this.receive(message));
    const watcher = vscode.workspace.createFileSystemWatcher(
      new vscode.RelativePattern(vscode.Uri.joinPath(uri, ".."), title),
    );
    watcher.onDidChange(() => this.rewritten());
    watcher.onDidCreate(() => this.rewritten());
    this.panel.onDidDispose(() => {
      watcher.dispose();
      clearTimeout(this.changed);
      this.close();
    });
  }

  find(query: LineQuery): void {
    this.panel.reveal();
    if (this.loaded) {
      void this.panel.post({ kind: "find", ...query });
    } else {
      this.pending = query;
    }
  }

  private rewritten(): void {
    clearTimeout(this.changed);
    this.changed = setTimeout(() => {
      void this.panel.post({ kind: "note", text: "The file has changed." });
    }, QUIET_MS);
  }

  private async receive(message: PageMessage): Promise<void> {
    switch (message.kind) {
      case "ready":
        // The page is loaded twice: its policy names the server, which is told who frames it.
        if (this.address === undefined) {
          await this.serve(message.origins);
        } else {
          void this.panel.post({ kind: "open", address: this.address });
        }
        break;
      case "loaded":
        this.loaded = true;
        if (this.pending !== undefined) {
          void this.panel.post({ kind: "find", ...this.pending });
          this.pending = undefined;
        }
        break;
      case "selected":
        if (message.slice !== null) {
          await this.reveal(message.slice);
        }
        break;
      case "retry":
        this.close();
        this.panel.allow("");
        break;
    }
  }

  private async serve(frames: string[]): Promise<void> {
    try {
      const opened = await this.services.request<{ number: number; address: string; cut: number }>(
        "opstep/timeline/open",
        { path: this.uri.fsPath, frames },
      );
      this.number = opened.number;
      // Where the editor is on another machine, the port is forwarded to it.
      const external = await vscode.env.asExternalUri(vscode.Uri.parse(opened.address));
      this.address = external.toString(true);
      this.panel.allow(`frame-src ${new URL(this.address).origin}`);
    } catch (error) {
      const text = messageOf(error);
      this.services.log.warn(`timeline: ${text}`);
      void this.panel.post({ kind: "failed", text });
    }
  }

  private close(): void {
    if (this.number !== undefined) {
      this.services
        .request("opstep/timeline/close", { number: this.number })
        .catch(() => undefined); // the server has ended: so has what it served
    }
    this.number = this.address = undefined;
    this.loaded = false;
  }

  /** The line of the program that a slice ran. */
  private async reveal({ args }: Slice): Promise<void> {
    const { file, line, statement } = args;
    if (!file || !line) {
      return;
    }
    const uri = await this.program(file);
    if (uri === undefined) {
      vscode.window.setStatusBarMessage(`${file}:${line} is not in this window's folders`, 5000);
      return;
    }
    const document = await vscode.workspace.openTextDocument(uri);
    const at = findStatement(document.getText(), Number(line) - 1, statement ?? "");
    if (at === undefined) {
      const text = `${path.basename(file)} has been changed: “${statement}” is no longer in it`;
      vscode.window.setStatusBarMessage(text, 6000);
    }
    const shown = at ?? Number(line) - 1;
    const { firstNonWhitespaceCharacterIndex: column } = document.lineAt(
      Math.min(shown, document.lineCount - 1),
    );
    await showLine(uri, shown, { column, focus: false });
  }

  /** The file that a trace names: as it is, or below the trace's folder or one of the workspace. */
  private async program(file: string): Promise<vscode.Uri | undefined> {
    const folders = (vscode.workspace.workspaceFolders ?? []).map((f) => f.uri.fsPath);
    for (const each of candidatePaths(file, [...folders, path.dirname(this.uri.fsPath)])) {
      const uri = vscode.Uri.file(path.normalize(each));
      try {
        await vscode.workspace.fs.stat(uri);
        return uri;
      } catch {
        // not there: perhaps in the next folder
      }
    }
    const name = path.basename(file);
    const [found] = await vscode.workspace.findFiles(`**/${name}`, "**/node_modules/**", 1);
    return found;
  }
}
