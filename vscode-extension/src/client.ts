/** The language server: started with the Python that was found, started again after a crash, a few times. */

import * as vscode from "vscode";
import {
  CloseAction,
  ErrorAction,
  LanguageClient,
  RevealOutputChannelOn,
  State,
} from "vscode-languageclient/node";
import { messageOf } from "../shared/errors";
import { LensCommands } from "./lenses";
import type { Python } from "./python";
import { Restarts } from "./restarts";
import { MODULE } from "./shell";

const SCHEMES = ["file", "untitled"];

/** Whether the server looks at a document: files of virtual folders are on no disk. */
function isServed(document: vscode.TextDocument): boolean {
  return document.languageId === "opg" && SCHEMES.includes(document.uri.scheme);
}

/** A client whose troubles go to the log: what is said of them is said once, by `LanguageServer`. */
class QuietClient extends LanguageClient {
  override error(message: string, data?: unknown): void {
    super.error(message, data, false);
  }
}

export class LanguageServer implements vscode.Disposable {
  private client: LanguageClient | undefined;
  private readonly restarts = new Restarts();
  private readonly disposables: vscode.Disposable[] = [];
  private readonly files = vscode.workspace.createFileSystemWatcher("**/*.opg");
  private readonly lenses = new LensCommands();
  private disposed = false;
  /** One start or stop after the other. */
  private queue: Promise<void> = Promise.resolve();

  constructor(
    private readonly python: Python,
    private readonly log: vscode.LogOutputChannel,
  ) {
    this.disposables.push(
      this.files,
      python.onDidChange(() => void this.restart()),
      vscode.commands.registerCommand("opstep.restartServer", async () => {
        await python.refresh();
        await this.restart();
      }),
    );
  }

  dispose(): void {
    this.disposed = true;
    vscode.Disposable.from(this.lenses, ...this.disposables).dispose();
    void this.stop();
  }

  /** Starts it, where a Python is ready; else says what is missing. */
  start(): Promise<void> {
    return this.enqueue(async () => {
      const found = await this.python.find();
      if (!found) {
        this.complainOnceNeeded();
        return;
      }
      if (this.client) {
        return;
      }
      await this.startWith(found.path);
    });
  }

  /** Says what is missing as soon as a graph is in an editor: before, nobody asked for it. */
  private complainOnceNeeded(): void {
    if (vscode.workspace.textDocuments.some((document) => isServed(document))) {
      void this.python.complain();
      return;
    }
    const opened = vscode.workspace.onDidOpenTextDocument((document) => {
      if (isServed(document)) {
        opened.dispose();
        if (!this.python.current) {
          void this.python.complain();
        }
      }
    });
    this.disposables.push(opened);
  }

  stop(): Promise<void> {
    return this.enqueue(() => this.stopNow());
  }

  restart(): Promise<void> {
    this.restarts.forget();
    void this.stop();
    return this.start();
  }

  async request<T>(method: string, params: unknown, token?: vscode.CancellationToken): Promise<T> {
    const client = await this.running();
    // An undefined token would be sent as a second parameter, and both as a list.
    return token
      ? client.sendRequest<T>(method, params, token)
      : client.sendRequest<T>(method, params);
  }

  async notify(method: string, params: unknown): Promise<void> {
    if (this.client?.state === State.Running) {
      await this.client.sendNotification(method, params);
    }
  }

  private async running(): Promise<LanguageClient> {
    await this.queue;
    if (this.client?.state !== State.Running) {
      throw new Error(
        "opstep's language server is not running. “opstep: Restart Language Server” starts it; the log says why it exited.",
      );
    }
    return this.client;
  }

  private enqueue(act: () => Promise<void>): Promise<void> {
    this.queue = this.queue.then(act).catch((error) => {
      this.log.error(`language server: ${messageOf(error)}`);
    });
    return this.queue;
  }

  private async stopNow(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    if (client && client.state === State.Running) {
      await client.dispose(2000);
    }
  }

  private async startWith(python: string): Promise<void> {
    await this.stopNow();
    const client = new QuietClient(
      "opstep",
      "opstep",
      { command: python, args: [...MODULE, "lsp"] },
      {
        documentSelector: SCHEMES.map((scheme) => ({ scheme, language: "opg" })),
        outputChannel: this.log,
        revealOutputChannelOn: RevealOutputChannelOn.Never,
        initializationOptions: () => vscode.workspace.getConfiguration("opstep"),
        synchronize: { configurationSection: "opstep", fileEvents: this.files },
        middleware: {
          provideInlineValues: () => [], // `Live` shows them, in colour
          provideCodeLenses: async (document, token, next) =>
            (await next(document, token))?.map((lens) => this.lenses.bound(lens)),
        },
        initializationFailedHandler: (error) => {
          this.log.error(`language server: ${error?.message ?? error}`);
          return false;
        },
        errorHandler: {
          error: (_error, _message, count) => ({
            action: (count ?? 0) <= 3 ? ErrorAction.Continue : ErrorAction.Shutdown,
            handled: true,
          }),
          closed: () => {
            this.onExit(client);
            return { action: CloseAction.DoNotRestart, handled: true };
          },
        },
      },
    );
    this.client = client;
    this.log.info(`language server: ${[python, ...MODULE, "lsp"].join(" ")}`);
    try {
      await client.start();
    } catch (error) {
      this.log.error(`language server: ${messageOf(error)}`);
      this.onExit(client);
    }
  }

  /** It ended by itself. It is started again, a few times; then that is said, once. */
  private onExit(client: LanguageClient): void {
    if (this.client !== client) {
      return;
    }
    this.client = undefined;
    const wait = this.restarts.again();
    if (wait === undefined) {
      void this.reportGone();
      return;
    }
    this.log.warn(`The language server exited unexpectedly; restarting in ${wait} ms.`);
    setTimeout(() => {
      if (!this.client && !this.disposed) {
        void this.start();
      }
    }, wait);
  }

  private async reportGone(): Promise<void> {
    const picked = await vscode.window.showErrorMessage(
      "opstep's language server crashed several times and will not be restarted. Syntax colouring and the debugger still work.",
      "Show Log",
      "Restart",
    );
    if (picked === "Show Log") {
      this.log.show();
    } else if (picked === "Restart") {
      await vscode.commands.executeCommand("opstep.restartServer");
    }
  }
}
