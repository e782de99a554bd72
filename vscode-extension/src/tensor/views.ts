/** Tensor views: panels that show a tensor as a picture, a histogram or a table, and follow the run. */

import * as vscode from "vscode";
import type { Subject } from "../../shared/tensor/messages";
import type { Services, Stop } from "../services";
import { onRestore } from "../webview";
import { TensorPanel, ViewMemory } from "./panel";
import { pickTensor } from "./pick";
import { subjectOf } from "./subjects";

const REFRESHED_MS = 15; // several events of one stop become one refresh

export function register(services: Services): vscode.Disposable {
  const views = new TensorViews(services);
  return vscode.Disposable.from(
    views,
    vscode.commands.registerCommand("opstep.openTensor", (argument?: unknown) =>
      views.open(argument),
    ),
    vscode.commands.registerCommand("opstep.openTensorExpression", () => views.prompt()),
    onRestore<{ expression?: string }>("tensor", (panel, state) => views.restore(panel, state)),
  );
}

class TensorViews implements vscode.Disposable {
  private readonly panels = new Set<TensorPanel>();
  private readonly memory: ViewMemory;
  private readonly disposables: vscode.Disposable[] = [];
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly services: Services) {
    this.memory = new ViewMemory(services.context.workspaceState);
    this.disposables.push(
      services.onStop((stop) => this.stopped(stop)),
      vscode.debug.onDidTerminateDebugSession((session) => {
        for (const panel of this.panels) {
          panel.ended(session);
        }
      }),
    );
  }

  dispose(): void {
    clearTimeout(this.timer);
    vscode.Disposable.from(...this.disposables, ...this.panels).dispose();
  }

  /** Opens a panel for what a menu, another view or the editor's cursor means. */
  async open(argument: unknown): Promise<void> {
    const isScript = this.services.stop?.isScript;
    const subject = subjectOf(argument, vscode.window.activeTextEditor, isScript);
    if (subject) {
      await this.show(subject);
    } else {
      await this.prompt();
    }
  }

  async prompt(): Promise<void> {
    const { stop } = this.services;
    const selected = subjectOf(undefined, vscode.window.activeTextEditor, stop?.isScript);
    if (!stop) {
      sayWhen();
      return;
    }
    const expression = await pickTensor(this.services, stop, selected?.expression);
    if (expression) {
      await this.show({ expression });
    }
  }

  restore(panel: vscode.WebviewPanel, state: { expression?: string } | undefined): void {
    if (state?.expression) {
      this.add(
        new TensorPanel(this.services, this.memory, { expression: state.expression }, panel),
      );
    } else {
      panel.dispose();
    }
  }

  private async show(subject: Subject): Promise<void> {
    if (!this.services.stop) {
      sayWhen();
      return;
    }
    const same = [...this.panels].find((p) => p.shows(subject));
    if (same) {
      same.reveal(subject.index);
      return;
    }
    this.add(new TensorPanel(this.services, this.memory, subject));
  }

  private add(panel: TensorPanel): void {
    this.panels.add(panel);
    panel.onDidDispose(() => this.panels.delete(panel));
  }

  private stopped(stop: Stop | undefined): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      for (const panel of this.panels) {
        void panel.follow(stop);
      }
    }, REFRESHED_MS);
  }
}

function sayWhen(): void {
  void vscode.window.showInformationMessage(
    "Tensors can be inspected while a run is stopped: press F5, or pause the run.",
  );
}
