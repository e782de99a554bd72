/** The table of all values of the frame: asked for at each stop, statistics as rows come into sight. */

import * as vscode from "vscode";
import type { FrameValues, HostMessage, PageMessage, Value } from "../../shared/values/messages";
import { showLine } from "../editor";
import type { Services, Stop } from "../services";
import { Panel } from "../webview";
import { allValuesOf, valuesOf } from "./requests";

/** Who holds F10 down is not to wait for a table. */
const SETTLE_MS = 150;

export function register(services: Services): vscode.Disposable {
  const view = new ValuesView(services);
  return vscode.Disposable.from(
    view,
    vscode.commands.registerCommand("opstep.showValues", () => view.show()),
  );
}

class ValuesView implements vscode.Disposable {
  private panel: Panel<PageMessage, HostMessage> | undefined;
  private ready = false;
  private turn = 0;
  private stop: Stop | undefined;
  private frame: FrameValues | undefined;
  private readonly subscription: vscode.Disposable;

  constructor(private readonly services: Services) {
    this.subscription = services.onStop((stop) => void this.follow(stop));
  }

  dispose(): void {
    this.subscription.dispose();
    this.panel?.dispose();
  }

  show(): void {
    if (!this.services.stop) {
      void vscode.window.showInformationMessage(
        "Values are shown while a run is stopped: press F5, or pause the run.",
      );
      return;
    }
    if (this.panel) {
      this.panel.reveal(false);
      return;
    }
    this.ready = false;
    const panel = new Panel<PageMessage, HostMessage>(this.services.context, {
      name: "values",
      title: "Values",
    });
    this.panel = panel;
    panel.onDidDispose(() => {
      this.panel = undefined;
    });
    panel.panel.onDidChangeViewState(({ webviewPanel }) => {
      if (webviewPanel.visible) {
        void this.follow(this.services.stop);
      }
    });
    panel.onMessage((message) => void this.receive(message));
    panel.reveal(false);
  }

  private async follow(stop: Stop | undefined): Promise<void> {
    const turn = ++this.turn;
    this.stop = stop;
    if (!this.ready || !this.panel?.panel.visible) {
      return; // it is read when it comes into sight
    }
    if (!stop) {
      this.post({ kind: "state", text: "The run goes on. These are the values of the last stop." });
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    if (turn === this.turn) {
      await this.read(stop, turn);
    }
  }

  private async read(stop: Stop, turn: number): Promise<void> {
    try {
      const frame = await allValuesOf(stop, () => turn === this.turn);
      if (turn === this.turn) {
        this.frame = frame;
        const { total, values } = frame;
        const graph = stop.isScript ? stop.graph : frame.graph;
        this.post({ kind: "values", turn, graph, total, values });
      }
    } catch (error) {
      this.services.log.debug(`no values: ${error}`);
    }
  }

  private post(message: HostMessage): void {
    void this.panel?.post(message);
  }

  private async receive(message: PageMessage): Promise<void> {
    const { stop } = this;
    switch (message.kind) {
      case "ready":
        this.ready = true;
        await this.follow(this.services.stop);
        break;
      case "want":
        if (stop && message.turn === this.turn) {
          await this.take(stop, message.turn, message.names);
        }
        break;
      case "line":
        await this.goTo(this.named(message.name), message.focus);
        break;
      default:
        await this.open(this.named(message.name));
    }
  }

  /** Statistics of some rows, as many as a step would not wait for; the page asks for the others again. */
  private async take(stop: Stop, turn: number, names: string[]): Promise<void> {
    try {
      const { values } = await valuesOf(stop, { names });
      if (turn === this.turn) {
        this.post({ kind: "figures", turn, values });
      }
    } catch (error) {
      this.services.log.debug(`no statistics: ${error}`);
      this.post({ kind: "figures", turn, values: [] }); // it does not wait for them
    }
  }

  private named(name: string): Value | undefined {
    return this.frame?.values.find((value) => value.name === name);
  }

  private async goTo(value: Value | undefined, focus: boolean): Promise<void> {
    const path = value?.python?.source?.path ?? this.frame?.source.path;
    const line = value?.python?.line ?? value?.line;
    if (path !== undefined && line !== undefined) {
      await showLine(vscode.Uri.file(path), line - 1, { focus });
    }
  }

  private async open(value: Value | undefined): Promise<void> {
    if (value) {
      const expression = value.expression ?? value.name;
      await vscode.commands.executeCommand("opstep.openTensor", expression);
    }
  }
}
