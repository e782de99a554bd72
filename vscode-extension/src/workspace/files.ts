/** The workspaces that are there: found in the folders, or opened by hand; and when they change. */

import path from "node:path";
import * as vscode from "vscode";
import type { Services } from "../services";
import type { Standing } from "./requests";

const OPENED = "opstep.openedWorkspaces";
const MOST = 500;
const SETTLED_MS = 300; // several writes become one look
const LIVE_MS = 1_000; // a run is under way
const QUIET_MS = 5_000; // none is, and the file system may have no events (network, containers)
const LEFT_OUT = "**/{node_modules,.git,.venv,venv,site-packages,__pycache__}/**";

/** The files, each with its standing; `onDidChange` has the paths of those that are others now. */
export class Files implements vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<string[] | undefined>();
  /** undefined: files came or went. */
  readonly onDidChange = this.changed.event;
  private readonly known = new Map<string, Standing>();
  private readonly disposables: vscode.Disposable[] = [this.changed];
  private readonly written = new Set<string>();
  private settled: NodeJS.Timeout | undefined;
  private timer: NodeJS.Timeout | undefined;
  private looking: Promise<void> | undefined;
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
    clearTimeout(this.settled);
    clearTimeout(this.timer);
    vscode.Disposable.from(...this.disposables).dispose();
  }

  get all(): Standing[] {
    return [...this.known.values()];
  }

  get(file: string): Standing | undefined {
    return this.known.get(file);
  }

  /** Looks for them, once at a time. */
  find(): Promise<void> {
    this.looking ??= this.search().finally(() => {
      this.looking = undefined;
    });
    return this.looking;
  }

  /** Shows a file from anywhere; false where it is no workspace (which was said). */
  async open(file: string): Promise<boolean> {
    const standing = await this.examine(file);
    if (!standing || ["absent", "foreign", "folder"].includes(standing.kind)) {
      void vscode.window.showErrorMessage(
        [standing?.message ?? `${file} cannot be read`, standing?.hint].filter(Boolean).join(": "),
      );
      return false;
    }
    const opened = this.opened.filter((f) => f !== file);
    await this.services.context.workspaceState.update(OPENED, [...opened, file]);
    this.put(standing);
    return true;
  }

  /** Shows a file that was opened by hand no more. */
  async close(file: string): Promise<void> {
    const opened = this.opened.filter((f) => f !== file);
    await this.services.context.workspaceState.update(OPENED, opened);
    this.known.delete(file);
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
      this.again();
    }
  }

  /** A file was written to, or may have been. */
  touch(file: string): void {
    this.written.add(file);
    clearTimeout(this.settled);
    this.settled = setTimeout(() => {
      const files = [...this.written];
      this.written.clear();
      void this.look(files);
    }, SETTLED_MS);
  }

  private get opened(): string[] {
    return this.services.context.workspaceState.get<string[]>(OPENED, []);
  }

  private async search(): Promise<void> {
    const found = await vscode.workspace.findFiles("**/*.db", LEFT_OUT, MOST);
    const configured = vscode.workspace.getConfiguration("opstep").get<string>("workspace", "");
    const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
    const paths = new Set(found.filter((uri) => uri.scheme === "file").map((uri) => uri.fsPath));
    if (configured && (folder || path.isAbsolute(configured))) {
      paths.add(path.resolve(folder ?? "", configured));
    }
    try {
      const { files } = await this.services.request<{ files: Standing[] }>(
        "opstep/workspace/find",
        { paths: [...paths] },
      );
      const opened = await Promise.all(this.opened.map((file) => this.examine(file)));
      this.known.clear();
      for (const standing of [...files, ...opened]) {
        if (standing && !(standing.kind === "absent" && !this.isOpened(standing.path))) {
          this.known.set(standing.path, standing);
        }
      }
      this.changed.fire(undefined);
    } catch (error) {
      this.services.log.info(`workspaces were not looked for: ${error}`);
    }
  }

  private async examine(file: string): Promise<Standing | undefined> {
    try {
      return await this.services.request<Standing>("opstep/workspace/examine", { path: file });
    } catch (error) {
      this.services.log.info(`${file} was not looked at: ${error}`);
      return undefined;
    }
  }

  private put(standing: Standing): void {
    const before = this.known.get(standing.path);
    this.known.set(standing.path, standing);
    this.changed.fire(before ? [standing.path] : undefined);
  }

  private async look(files: string[]): Promise<void> {
    if (files.some((file) => !this.known.has(file))) {
      await this.find();
      return;
    }
    const changed: string[] = [];
    for (const file of files) {
      const before = this.known.get(file);
      const now = await this.examine(file);
      if (now && (now.stamp !== before?.stamp || now.kind !== before?.kind || now.running)) {
        this.known.set(file, now);
        changed.push(file);
      }
      if (now?.kind === "absent" && !this.isOpened(file)) {
        this.known.delete(file);
        this.changed.fire(undefined);
      }
    }
    if (changed.length) {
      this.changed.fire(changed);
    }
  }

  private again(): void {
    const live = this.all.some((standing) => standing.running);
    this.timer = setTimeout(
      async () => {
        // None is known where no server ran yet, too: Python may have been chosen meanwhile.
        await (this.known.size ? this.look([...this.known.keys()]) : this.find());
        if (this.watched) {
          this.again();
        }
      },
      live ? LIVE_MS : QUIET_MS,
    );
  }
}
