/** Tensors stored in a workspace, in the Tensor view: its page calls the language server instead of a debugger. */

import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import type { Calls, HostMessage, PageMessage, ViewState } from "../../shared/tensor/messages";
import type { Services } from "../services";
import { save } from "../tensor/panel";
import { call, openTensor, type SendRequest } from "../tensor/requests";
import { Panel } from "../webview";
import type { StoredTensor } from "./requests";

type SaveArguments = Calls["save"]["arguments"];
type TensorPanel = Panel<PageMessage, HostMessage>;

export class StoredTensorPanels implements vscode.Disposable {
  private readonly panels = new Map<string, TensorPanel>();

  constructor(private readonly services: Services) {}

  dispose(): void {
    for (const panel of this.panels.values()) {
      panel.dispose();
    }
  }

  async open(path: string, tensor: StoredTensor): Promise<void> {
    const key = `${path}#${tensor.id}`;
    const there = this.panels.get(key);
    if (there) {
      there.reveal(false);
      return;
    }
    const send: SendRequest = (command, args) =>
      this.services.request(command.replace("opstep/", "opstep/workspace/"), {
        path,
        tensor: tensor.id,
        ...args,
      });
    const panel: TensorPanel = new Panel(this.services.context, {
      name: "tensor",
      title: tensor.reference,
    });
    this.panels.set(key, panel);
    panel.onDidDispose(() => this.panels.delete(key));
    let view: ViewState | undefined;
    panel.onMessage(async (message) => {
      switch (message.kind) {
        case "ready":
          await panel.post(await openMessage(send, tensor, view));
          break;
        case "call":
          await panel.post(await answerMessage(send, message));
          break;
        case "view":
          view = message.view;
          break;
        case "nan":
          void vscode.window.showInformationMessage(
            "For the origin of NaNs in a recorded run, see its findings in the view Runs.",
          );
          break;
      }
    });
  }
}

async function openMessage(
  send: SendRequest,
  tensor: StoredTensor,
  view: ViewState | undefined,
): Promise<HostMessage> {
  const subject = { expression: expressionOf(tensor), label: tensor.reference };
  const location = { turn: 0, graph: tensor.run ?? "saved", file: "", line: 0, pinned: false };
  const opened = { kind: "open", subject, view, location } as const;
  try {
    return { ...opened, ...(await openTensor(send, { frameId: 0 }, subject.expression, view)) };
  } catch (error) {
    return { ...opened, error: messageOf(error) };
  }
}

async function answerMessage(
  send: SendRequest,
  message: Extract<PageMessage, { kind: "call" }>,
): Promise<HostMessage> {
  const { id, name } = message;
  try {
    if (name === "set") {
      throw new Error("a stored tensor cannot be changed");
    }
    if (name === "save") {
      return { kind: "answer", id, answer: await save(message.arguments as SaveArguments) };
    }
    const found = await call(send, { frameId: 0 }, name, message.arguments as never);
    return { kind: "answer", id, answer: found } as HostMessage;
  } catch (error) {
    return { kind: "answer", id, error: messageOf(error) };
  }
}

/** The name, which the language of expressions may not take as it is. */
function expressionOf(tensor: StoredTensor): string {
  return /^[A-Za-z_][\w.]*$/.test(tensor.name) ? tensor.name : "value";
}
