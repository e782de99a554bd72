/** The Python that runs opstep: found, kept up to date, chosen by the user; complains if there is none. */

import { readFileSync } from "node:fs";
import path from "node:path";
import * as vscode from "vscode";
import { messageOf } from "../shared/errors";
import {
  type Action,
  type Candidate,
  candidates,
  complaint,
  discover,
  examine,
  expandPath,
  type Interpreter,
  inFolder,
} from "./discovery";
import { worked } from "./walkthrough";

const LABELS: Record<Action, string> = {
  install: "Install opstep…",
  select: "Select Interpreter…",
  docs: "Open Docs",
  settings: "Open Settings",
};
const ACT = "opstep.mendPython"; // takes an `Action`

/** The part of the Python extension's API that is used. */
interface PythonExtension {
  environments?: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { path: string };
    resolveEnvironment(path: {
      path: string;
    }): Promise<{ executable: { uri?: vscode.Uri } } | undefined>;
    onDidChangeActiveEnvironmentPath: vscode.Event<unknown>;
  };
}

/** No Python is ready, and the user has been told. */
class NoPython extends Error {}

/** Shows what has gone wrong, unless that was said already. */
export function tellError(error: unknown): void {
  if (!(error instanceof NoPython)) {
    void vscode.window.showErrorMessage(messageOf(error));
  }
}

export class Python implements vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<Interpreter | undefined>();
  private readonly disposables: vscode.Disposable[] = [this.changed];
  private search: Promise<Interpreter | undefined> | undefined;
  private found: Interpreter | undefined;
  private tried: Interpreter[] = [];
  private done = false;
  private lastComplaint = "";
  /** Takes the message back that is shown. */
  private retract: (() => void) | undefined;
  private listening = false;
  /** Fires when another interpreter is found to be the one, with undefined where none is ready. */
  readonly onDidChange = this.changed.event;

  constructor(
    private readonly context: vscode.ExtensionContext,
    private readonly log: vscode.LogOutputChannel,
  ) {
    const again = () => void this.refresh();
    const watcher = vscode.workspace.createFileSystemWatcher("**/{.venv,venv}/pyvenv.cfg");
    this.disposables.push(
      vscode.commands.registerCommand(ACT, (action: Action) => this.mend(action)),
      vscode.window.onDidChangeWindowState(({ focused }) => {
        if (focused && this.done && !this.current) {
          again(); // it may have been installed in another window
        }
      }),
      watcher,
      watcher.onDidCreate(again),
      watcher.onDidDelete(again),
      vscode.workspace.onDidChangeWorkspaceFolders(again),
      vscode.extensions.onDidChange(again),
      vscode.workspace.onDidChangeConfiguration((e) => {
        if (e.affectsConfiguration("opstep.python")) {
          this.lastComplaint = "";
          again();
        }
      }),
    );
  }

  dispose(): void {
    this.retract?.();
    vscode.Disposable.from(...this.disposables).dispose();
  }

  /** What is known at present, without a search. */
  get current(): Interpreter | undefined {
    return this.found?.verdict === "ready" ? this.found : undefined;
  }

  /** Whether a search has come to its end: before, nothing is known. */
  get searched(): boolean {
    return this.done;
  }

  /** The interpreter that is ready, or undefined; the first call searches. */
  async find(): Promise<Interpreter | undefined> {
    this.search ??= this.runSearch();
    const chosen = await this.search;
    return chosen?.verdict === "ready" ? chosen : undefined;
  }

  /** The path of the interpreter. Where there is none that is said, and it rejects. */
  async need(): Promise<string> {
    const ready = (await this.find()) ?? (await this.refresh());
    if (!ready) {
      this.complainAgain();
      throw new NoPython(complaint(this.found, this.tried).text);
    }
    return ready.path;
  }

  /** Says what is missing, also where that was said before: something was asked for that needs it. */
  complainAgain(): void {
    this.lastComplaint = "";
    void this.complain();
  }

  /** Searches again. */
  async refresh(): Promise<Interpreter | undefined> {
    const before = this.current?.path;
    this.search = this.runSearch();
    const ready = await this.find();
    if (ready?.path !== before) {
      this.changed.fire(ready);
    }
    return ready;
  }

  private async runSearch(): Promise<Interpreter | undefined> {
    const { chosen, found } = await discover(await this.candidates());
    for (const one of found) {
      const version = one.probe ? ` Python ${one.probe.version}, opstep ${one.probe.opstep}` : "";
      this.log.info(`Python: ${one.path} (${one.origin}): ${one.verdict}${version}`);
    }
    this.found = chosen;
    this.tried = found;
    this.done = true;
    if (chosen?.verdict === "ready") {
      this.retract?.();
      worked("python");
    }
    return chosen;
  }

  private async candidates(): Promise<Candidate[]> {
    const file = vscode.window.activeTextEditor?.document.uri;
    return candidates({
      setting: vscode.workspace.getConfiguration("opstep").get<string>("python", ""),
      active: await this.active(file),
      folders: folderPaths(),
      file: file?.scheme === "file" ? file.fsPath : undefined,
      searchPath: process.env.PATH ?? "",
      platform: process.platform,
    });
  }

  /** What scripts run in: the setting, the interpreter of the Python extension, or else what runs opstep. */
  async ofScripts(
    file: string | undefined,
    folder: vscode.WorkspaceFolder | undefined,
  ): Promise<string> {
    const isSet = vscode.workspace.getConfiguration("opstep").get<string>("python", "").trim();
    const resource = file ? vscode.Uri.file(file) : folder?.uri;
    return (isSet ? undefined : await this.active(resource)) ?? (await this.need());
  }

  /** The interpreter that the Python extension has chosen, where there is one. */
  async active(resource: vscode.Uri | undefined): Promise<string | undefined> {
    const extension = vscode.extensions.getExtension<PythonExtension>("ms-python.python");
    try {
      const { environments } = (await extension?.activate()) ?? {};
      if (!environments) {
        return undefined;
      }
      if (!this.listening) {
        this.listening = true;
        this.disposables.push(
          environments.onDidChangeActiveEnvironmentPath(() => void this.refresh()),
        );
      }
      const chosen = environments.getActiveEnvironmentPath(resource);
      const resolved = await environments.resolveEnvironment(chosen);
      return resolved?.executable.uri?.fsPath;
    } catch (error) {
      this.log.warn(`Python: the Python extension returned no interpreter: ${error}`);
      return undefined;
    }
  }

  /** Says what is missing, once for each thing that is. What is said goes away when a Python is there. */
  async complain(): Promise<void> {
    const { text, actions } = complaint(this.found, this.tried);
    if (!text || text === this.lastComplaint) {
      return;
    }
    this.lastComplaint = text;
    this.log.error(text);
    this.retract?.();
    // A plain message has buttons, but nobody can take it back.
    const links = actions.map(
      (action) =>
        `[${LABELS[action]}](command:${ACT}?${encodeURIComponent(JSON.stringify(action))})`,
    );
    const message = `${text} ${links.join(" · ")}`;
    const options = { location: vscode.ProgressLocation.Notification, cancellable: true };
    await vscode.window.withProgress(options, (progress, token) => {
      progress.report({ message });
      return new Promise<void>((resolve) => {
        this.retract = resolve;
        token.onCancellationRequested(() => resolve());
      });
    });
  }

  private async mend(action: Action): Promise<unknown> {
    switch (action) {
      case "install":
        return this.found && this.install(this.found);
      case "select":
        return this.select();
      case "docs":
        return vscode.commands.executeCommand(
          "markdown.showPreview",
          vscode.Uri.joinPath(this.context.extensionUri, "README.md"),
        );
      case "settings":
        return vscode.commands.executeCommand("workbench.action.openSettings", "opstep.python");
    }
  }

  /** A checkout, a wheel, or what the setting opstep.package names. */
  private async whatToInstall(): Promise<string | undefined> {
    const named = vscode.workspace.getConfiguration("opstep").get<string>("package", "").trim();
    if (named) {
      return expandPath(named, folderPaths());
    }
    const here = folderPaths().filter((folder) => isCheckout(folder));
    const picked = await vscode.window.showQuickPick(
      [
        ...here.map((folder) => ({ label: `$(repo) ${folder}`, value: folder })),
        { label: "$(folder-opened) A checkout of opstep…", value: "folder" },
        { label: "$(package) A wheel (.whl)…", value: "wheel" },
      ],
      { title: "Install opstep from", placeHolder: "Or set opstep.package" },
    );
    if (!picked || here.includes(picked.value)) {
      return picked?.value;
    }
    const files = await vscode.window.showOpenDialog({
      title: picked.label.replace(/^\$\(.*?\) /, ""),
      canSelectFolders: picked.value === "folder",
      canSelectFiles: picked.value === "wheel",
      filters: picked.value === "wheel" ? { Wheels: ["whl"] } : {},
    });
    return files?.[0]?.fsPath;
  }

  /** Runs pip where the user sees it, after asking. */
  private async install(into: Interpreter): Promise<void> {
    const what = await this.whatToInstall();
    if (!what) {
      return;
    }
    const args = ["-m", "pip", "install", "--upgrade", what];
    const answer = await vscode.window.showWarningMessage(
      `Install opstep into ${into.path}?`,
      {
        modal: true,
        detail: `This runs in a terminal:\n${into.path} ${args.join(" ")}`,
      },
      "Install",
    );
    if (answer !== "Install") {
      return;
    }
    const task = new vscode.Task(
      { type: "opstep-install" },
      vscode.TaskScope.Workspace,
      "install",
      "opstep",
      new vscode.ProcessExecution(into.path, args),
    );
    task.presentationOptions = { reveal: vscode.TaskRevealKind.Always, focus: true };
    const execution = await vscode.tasks.executeTask(task);
    const ended = vscode.tasks.onDidEndTaskProcess(async (e) => {
      if (e.execution !== execution) {
        return;
      }
      ended.dispose();
      this.lastComplaint = "";
      if (!(await this.refresh())) {
        await this.complain();
      }
    });
  }

  /** Lets the user choose among all interpreters that are found. */
  async select(): Promise<void> {
    const pick = vscode.window.createQuickPick<
      vscode.QuickPickItem & { value?: string; act?: "browse" | "automatic" }
    >();
    pick.title = "Python that runs opstep";
    pick.placeholder = "Or type a path";
    pick.busy = true;
    pick.show();
    const last: typeof pick.items = [
      { label: "", kind: vscode.QuickPickItemKind.Separator },
      {
        label: "$(sparkle) Detect automatically",
        description: "clears the setting",
        act: "automatic",
      },
      { label: "$(folder-opened) Browse…", act: "browse" },
    ];
    pick.items = last;
    void this.allInterpreters().then((found) => {
      pick.items = [...found.map(pickItem), ...last];
      pick.busy = false;
    });
    const chosen = await new Promise<{ value?: string; act?: string } | undefined>((resolve) => {
      pick.onDidAccept(() => resolve(pick.selectedItems[0] ?? { value: pick.value }));
      pick.onDidHide(() => resolve(undefined));
    });
    pick.dispose();
    let value = chosen?.value;
    if (chosen?.act === "browse") {
      const files = await vscode.window.showOpenDialog({
        title: "Select a Python interpreter",
        canSelectMany: false,
      });
      value = files?.[0]?.fsPath;
    } else if (chosen?.act === "automatic") {
      value = "";
    }
    if (value === undefined) {
      return;
    }
    await keepChoice(value);
    this.lastComplaint = "";
    if (!(await this.refresh())) {
      await this.complain();
    }
  }

  private async allInterpreters(): Promise<Interpreter[]> {
    const setting = vscode.workspace.getConfiguration("opstep").get<string>("python", "");
    const file = vscode.window.activeTextEditor?.document.uri;
    const around = {
      setting: "",
      active: await this.active(file),
      folders: folderPaths(),
      file: file?.scheme === "file" ? file.fsPath : undefined,
      searchPath: process.env.PATH ?? "",
      platform: process.platform,
    };
    const all = candidates(around);
    if (setting) {
      all.unshift(...candidates({ ...around, setting }));
    }
    const once = all.filter((c, i) => all.findIndex((d) => d.path === c.path) === i);
    return Promise.all(once.map((c) => examine(c)));
  }
}

/**
 * Sets opstep.python: in the folder's settings, which hold on every machine, without a path of this one; otherwise in
 * those of the user or the machine.
 */
async function keepChoice(file: string): Promise<void> {
  const config = vscode.workspace.getConfiguration("opstep");
  const { Global, Workspace } = vscode.ConfigurationTarget;
  const inside = inFolder(file, folderPaths());
  if (vscode.workspace.workspaceFolders) {
    await config.update("python", inside, Workspace);
  }
  if (!inside) {
    await config.update("python", file || undefined, Global);
  }
}

function folderPaths(): string[] {
  return (vscode.workspace.workspaceFolders ?? [])
    .filter((f) => f.uri.scheme === "file")
    .map((f) => f.uri.fsPath);
}

/** Whether a folder is where opstep itself is worked on. */
function isCheckout(folder: string): boolean {
  try {
    return /^name = "opstep"$/m.test(readFileSync(path.join(folder, "pyproject.toml"), "utf8"));
  } catch {
    return false;
  }
}

const ORIGINS: Record<Candidate["origin"], string> = {
  setting: "setting opstep.python",
  extension: "the Python extension's",
  venv: "of the folder",
  path: "on PATH",
};

function pickItem(found: Interpreter): vscode.QuickPickItem & { value: string } {
  const ready = found.verdict === "ready";
  return {
    label: `$(${ready ? "check" : "warning"}) ${found.path}`,
    description: found.probe ? `Python ${found.probe.version}` : "",
    detail: `${ORIGINS[found.origin]}; ${ready ? `opstep ${found.probe?.opstep}` : complaint(found).text}`,
    value: found.path,
  };
}
