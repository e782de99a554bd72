/** The query panel: the page's requests go to the language server, its wishes to the workbench. */

import path from "node:path";
import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import { counted, duration } from "../../shared/format";
import type {
  HostMessage,
  Mode,
  PageMessage,
  PageState,
  WorkspaceEntry,
} from "../../shared/query/messages";
import { plotName } from "../../shared/query/plotText";
import { askSavePath, browse, type Filters, saveFile, WORKSPACES } from "../dialogs";
import type { Services } from "../services";
import { onRestore, Panel } from "../webview";
import type { Files } from "./files";
import { byteSize } from "./format";
import { goTo } from "./locations";

const HISTORY = "opstep.queries";
const REMEMBERED = 100;
/** What the page may ask of the language server. */
const ALLOWED = new Set([
  "query",
  "rows",
  "field",
  "stop",
  "close",
  "copy",
  "plot",
  "plotRows",
  "schema",
]);

interface HistoryEntry {
  mode: Mode;
  text: string;
}

interface QueryRequest {
  path?: string;
  mode?: Mode;
  text?: string;
}

/** The panel, of which there is one: it changes between workspaces. */
export class Queries implements vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChange = this.changed.event;
  private panel: Panel<PageMessage, HostMessage> | undefined;
  private path = "";
  /** What is shown, in a word or two, for the tab. */
  private subject = "query";
  private pending: QueryRequest | undefined;
  private ready = false;
  private readonly disposables: vscode.Disposable[];

  constructor(
    private readonly services: Services,
    private readonly files: Files,
  ) {
    this.disposables = [
      this.changed,
      vscode.commands.registerCommand("opstep.openQuery", (request?: QueryRequest | vscode.Uri) =>
        this.command(request),
      ),
      files.onDidChange((paths) => this.changedFiles(paths)),
      onRestore<PageState>("query", (panel, state) => this.restore(panel, state)),
    ];
  }

  dispose(): void {
    vscode.Disposable.from(...this.disposables).dispose();
    this.panel?.dispose();
  }

  get isOpen(): boolean {
    return this.panel !== undefined;
  }

  /** Shows the panel with a question, which is run; or as it is. */
  async open(request: QueryRequest): Promise<void> {
    if (!this.files.all.length) {
      await this.files.find();
    }
    const file = request.path ?? (this.path || this.newest);
    if (!file && !(await this.choose())) {
      return;
    }
    if (file) {
      this.path = file;
    }
    if (this.panel) {
      this.panel.reveal(false);
      if (this.ready) {
        void this.panel.post(this.openMessage(request));
      } else {
        this.pending = request;
      }
      return;
    }
    this.pending = request;
    this.show();
  }

  private async command(request: QueryRequest | vscode.Uri | undefined): Promise<void> {
    if (request instanceof vscode.Uri) {
      if (await this.files.open(request.fsPath)) {
        await this.open({ path: request.fsPath });
      }
      return;
    }
    const fields = request ?? {};
    await this.open({
      ...(typeof fields.path === "string" && { path: fields.path }),
      ...(typeof fields.text === "string" && { text: fields.text, mode: fields.mode ?? "sql" }),
    });
  }

  private restore(panel: vscode.WebviewPanel, state: PageState | undefined): void {
    this.path = state?.path ?? "";
    this.subject = state ? subjectOf(state.mode, state.plot) : "query";
    this.show(panel);
  }

  private show(restored?: vscode.WebviewPanel): void {
    this.ready = false;
    this.panel = new Panel<PageMessage, HostMessage>(this.services.context, {
      name: "query",
      title: "Workspace Query",
      panel: restored,
    });
    this.panel.onMessage((message) => void this.receive(message));
    this.panel.onDidDispose(() => {
      this.panel = undefined;
      this.subject = "query";
      this.changed.fire();
    });
    this.changed.fire();
  }

  private get newest(): string {
    const good = this.files.all.filter((status) => status.kind === "workspace");
    return good.toSorted((a, b) => (b.last ?? "").localeCompare(a.last ?? ""))[0]?.path ?? "";
  }

  private get workspaces(): WorkspaceEntry[] {
    return this.files.all
      .filter((status) => status.kind === "workspace")
      .map(({ path: file }) => ({ path: file, label: vscode.workspace.asRelativePath(file) }));
  }

  private get history(): HistoryEntry[] {
    return this.services.context.workspaceState.get<HistoryEntry[]>(HISTORY, []);
  }

  private named(subject: string): void {
    this.subject = subject;
    if (this.panel) {
      this.panel.title = this.path ? `${path.basename(this.path)}: ${subject}` : "Workspace Query";
    }
  }

  private openMessage({ mode, text }: QueryRequest): HostMessage {
    this.named(mode && text !== undefined ? subjectOf(mode, text) : this.subject);
    return {
      type: "open",
      path: this.path,
      workspaces: this.workspaces,
      history: this.history,
      ...(mode && text !== undefined && { mode, text }),
    };
  }

  private changedFiles(paths: string[] | undefined): void {
    if (!this.panel || !this.ready) {
      return;
    }
    if (paths?.includes(this.path)) {
      void this.panel.post({ type: "changed", path: this.path });
    } else if (!paths) {
      void this.panel.post({ type: "workspaces", workspaces: this.workspaces });
    }
  }

  // --- messages from the page ---

  private async receive(message: PageMessage): Promise<void> {
    try {
      await this.handle(message);
    } catch (error) {
      void vscode.window.showErrorMessage(messageOf(error));
    }
  }

  private async handle(message: PageMessage): Promise<void> {
    switch (message.type) {
      case "ready":
        this.ready = true;
        void this.panel?.post(this.openMessage(this.pending ?? {}));
        this.pending = undefined;
        break;
      case "request":
        await this.forward(message);
        break;
      case "goto":
        await goTo(this.services, message.path, message.location);
        break;
      case "copy":
        await vscode.env.clipboard.writeText(message.text);
        vscode.window.setStatusBarMessage(message.done || "Copied", 3000);
        break;
      case "remember": {
        const entry = { mode: message.mode, text: message.text };
        this.named(subjectOf(entry.mode, entry.text));
        const others = this.history.filter((h) => h.text !== entry.text);
        await this.services.context.workspaceState.update(
          HISTORY,
          [entry, ...others].slice(0, REMEMBERED),
        );
        break;
      }
      case "choose":
        if (await this.choose()) {
          void this.panel?.post(this.openMessage({}));
        }
        break;
      case "chosen":
        this.path = message.path;
        void this.panel?.post(this.openMessage({}));
        break;
      case "export":
        await this.export("export", message.format, message.path, { sql: message.sql });
        break;
      case "exportPlot":
        await this.export("exportPlot", "csv", message.path, { what: message.what });
        break;
      default:
        await saveFile(
          message.name,
          Buffer.from(message.data.split(",", 2)[1] ?? "", "base64"),
          filtersOf(message.name),
        );
    }
  }

  private async forward(message: Extract<PageMessage, { type: "request" }>): Promise<void> {
    const { id, method, params } = message;
    if (!ALLOWED.has(method)) {
      void this.panel?.post({ type: "response", id, error: `${method} is not allowed` });
      return;
    }
    try {
      const result = await this.services.request(`opstep/workspace/${method}`, params);
      void this.panel?.post({ type: "response", id, result });
    } catch (error) {
      void this.panel?.post({ type: "response", id, error: messageOf(error) });
    }
  }

  /** A file from anywhere, or one of those that are known. */
  private async choose(): Promise<boolean> {
    const uri = await browse("Open a Workspace", WORKSPACES);
    if (uri && (await this.files.open(uri.fsPath))) {
      this.path = uri.fsPath;
      return true;
    }
    return false;
  }

  private async export(method: string, format: string, file: string, more: object): Promise<void> {
    const name = `${path.basename(file, path.extname(file))}.${format}`;
    const uri = await askSavePath(name, { filters: filtersOf(name) });
    if (!uri) {
      return;
    }
    const query = `export-${Date.now()}`;
    interface Written {
      rows: number;
      bytes: number;
      seconds: number;
      problem?: { message: string };
    }
    const written = await vscode.window.withProgress(
      {
        location: vscode.ProgressLocation.Notification,
        title: `Writing ${path.basename(uri.fsPath)}`,
        cancellable: true,
      },
      async (_, token) => {
        token.onCancellationRequested(
          () => void this.services.request("opstep/workspace/stop", { query }),
        );
        const params = { query, path: file, file: uri.fsPath, format, ...more };
        return this.services.request<Written>(`opstep/workspace/${method}`, params);
      },
    );
    if (written.problem) {
      throw new Error(written.problem.message);
    }
    const summary = `${counted(written.rows, "row")}, ${byteSize(written.bytes)}, in ${duration(written.seconds)}`;
    const open = "Open";
    const chosen = await vscode.window.showInformationMessage(
      `Wrote ${path.basename(uri.fsPath)}: ${summary}`,
      open,
    );
    if (chosen === open) {
      await vscode.commands.executeCommand("vscode.open", uri);
    }
  }
}

function subjectOf(mode: Mode, text: string): string {
  return (mode === "plot" && plotName(text)) || "query";
}

function filtersOf(name: string): Filters {
  const extension = path.extname(name).slice(1);
  return { [extension.toUpperCase()]: [extension] };
}
