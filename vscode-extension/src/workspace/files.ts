/** The workspaces that are there: found in the folders, or opened by hand; and when they change. */

import path from "node:path";
import * as vscode from "vscode";
import type { Services } from "../services";
import type { WorkspaceStatus } from "./requests";

const OPENED = "opstep.openedWorkspaces";
const MOST = 500;
const SETTLED_MS = 300; // several writes become one look
const LIVE_MS = 1_000; // a run is under way
const QUIET_MS = 5_000; // none is, and the file system may have no events (network, containers)
const EXCLUDED = "**/{node_modules,.git,.venv,venv,site-packages,__pycache__}/**";

/** The files, each with its status; `onDidChange` has the paths of those that are others now. */
export class Files implements vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<string[] | undefined>();
  /** undefined: files came or went. */
  readonly onDidChange = this.changed.event;
  private readonly statuses = new Map<string, WorkspaceStatus>();
  private readonly disposables: vscode.Disposable[] = [this.changed];
  private readonly touched = new Set<string>();
  private settleTimer: NodeJS.Timeout | undefined;
  private timer: NodeJS.Timeout | undefined;
  private searching: Promise<void> | undefined;
  private watched = false;

  constructor(private readonly services: Services) {
    const watcher = vscode.workspace.createFileSystemWatcher("**/*.{db,db-wal}");
    const touched = (uri: vscode.Uri) => this.touch(uri.fsPath.replace(/-wal$/, ""));
    watcher.onDidCreate(touched);
    watcher.onDidChange(touched);
    watcher.onDidDelete(touched);
    this.disposables.push(
      watcher,
      vscode.workspace.onDidChangeWorkspaceFolders(() => void this.find()),
    );
  }

  dispose(): void {
    clearTimeout(this.settleTimer);
    clearTimeout(this.timer);
    vscode.Disposable.from(...this.disposables).dispose();
  }

  get all(): WorkspaceStatus[] {
    return [...this.statuses.values()];
  }

  get(file: string): WorkspaceStatus | undefined {
    return this.statuses.get(file);
  }

  /** Looks for them, once at a time. */
  find(): Promise<void> {
    this.searching ??= this.search().finally(() => {
      this.searching = undefined;
    });
    return this.searching;
  }

  /** Shows a file from anywhere; false where it is no workspace (which was said). */
  async open(file: string): Promise<boolean> {
    const status = await this.examine(file);
    if (!status || ["absent", "foreign", "folder"].includes(status.kind)) {
      void vscode.window.showErrorMessage(
        [status?.message ?? `${file} cannot be read`, status?.hint].filter(Boolean).join(": "),
      );
      return false;
    }
    const opened = this.opened.filter((f) => f !== file);
    await this.services.context.workspaceState.update(OPENED, [...opened, file]);
    this.put(status);
    return true;
  }

  /** Shows a file that was opened by hand no more. */
  async close(file: string): Promise<void> {
    const opened = this.opened.filter((f) => f !== file);
    await this.services.context.workspaceState.update(OPENED, opened);
    this.statuses.delete(file);
    this.changed.fire(undefined);
    await this.find();
  }

  isOpened(file: string): boolean {
    return this.opened.includes(file);
  }

  /** Somebody looks: files are also asked now and then, since not all file systems tell. */
  watch(on: boolean): void {
    this.watched = on;
    clearTimeout(this.timer);
    if (on) {
      this.scheduleRefresh();
    }
  }

  /** A file was written to, or may have been: looked at soon after the first write, however many follow. */
  touch(file: string): void {
    this.touched.add(file);
    this.settleTimer ??= setTimeout(() => void this.look(), SETTLED_MS);
  }

  private get opened(): string[] {
    return this.services.context.workspaceState.get<string[]>(OPENED, []);
  }

  private async search(): Promise<void> {
    const found = await vscode.workspace.findFiles("**/*.db", EXCLUDED, MOST);
    const configured = vscode.workspace.getConfiguration("opstep").get<string>("workspace", "");
    const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
    const paths = new Set(found.filter((uri) => uri.scheme === "file").map((uri) => uri.fsPath));
    if (configured && (folder || path.isAbsolute(configured))) {
      paths.add(path.resolve(folder ?? "", configured));
    }
    try {
      const { files } = await this.services.request<{ files: WorkspaceStatus[] }>(
        "opstep/workspace/find",
        { paths: [...paths] },
      );
      const opened = await Promise.all(this.opened.map((file) => this.examine(file)));
      this.statuses.clear();
      for (const status of [...files, ...opened]) {
        if (status && !(status.kind === "absent" && !this.isOpened(status.path))) {
          this.statuses.set(status.path, status);
        }
      }
      this.changed.fire(undefined);
    } catch (error) {
      this.services.log.info(`workspaces could not be searched for: ${error}`);
    }
  }

  private async examine(file: string): Promise<WorkspaceStatus | undefined> {
    try {
      return await this.services.request<WorkspaceStatus>("opstep/workspace/examine", {
        path: file,
      });
    } catch (error) {
      this.services.log.info(`${file} could not be read: ${error}`);
      return undefined;
    }
  }

  private put(status: WorkspaceStatus): void {
    const before = this.statuses.get(status.path);
    this.statuses.set(status.path, status);
    this.changed.fire(before ? [status.path] : undefined);
  }

  /** One look at a time: what is written meanwhile waits for the next one. */
  private async look(): Promise<void> {
    const files = [...this.touched];
    this.touched.clear();
    await this.refresh(files);
    this.settleTimer = this.touched.size
      ? setTimeout(() => void this.look(), SETTLED_MS)
      : undefined;
  }

  private async refresh(files: string[]): Promise<void> {
    if (files.some((file) => !this.statuses.has(file))) {
      await this.find();
      return;
    }
    const changed: string[] = [];
    for (const file of files) {
      const before = this.statuses.get(file);
      const now = await this.examine(file);
      if (now && (now.stamp !== before?.stamp || now.kind !== before?.kind || now.running)) {
        this.statuses.set(file, now);
        changed.push(file);
      }
      if (now?.kind === "absent" && !this.isOpened(file)) {
        this.statuses.delete(file);
        this.changed.fire(undefined);
      }
    }
    if (changed.length) {
      this.changed.fire(changed);
    }
  }

  private scheduleRefresh(): void {
    const live = this.all.some((status) => status.running);
    this.timer = setTimeout(
      async () => {
        // None is known where no server ran yet, too: Python may have been chosen meanwhile.
        await (this.statuses.size ? this.refresh([...this.statuses.keys()]) : this.find());
        if (this.watched) {
          this.scheduleRefresh();
        }
      },
      live ? LIVE_MS : QUIET_MS,
    );
  }
}
