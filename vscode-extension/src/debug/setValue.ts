/** A box for a tensor's new value, which holds the present one: VS Code's own would hold figures. */

import type { DebugProtocol } from "@vscode/debugprotocol";
import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import { asTyped } from "../../shared/values/typed";
import type { Services, Stop } from "../services";
import { whileStopped } from "./questions";
import type { VariableContext } from "./variables";

const MOST_ELEMENTS = 256; // that the box holds; of more, the tensor's name, which is as good

export async function setValue(services: Services, context?: VariableContext): Promise<void> {
  const stop = services.stop;
  const expression = context?.variable?.evaluateName;
  if (!stop || !expression) {
    return;
  }
  const type = context?.variable?.type ?? "";
  const options = {
    title: `New value of ${expression}${type && `: ${type}`}`,
    prompt: `Numbers, or an expression: where(nan(${expression}), 0, ${expression})`,
    value: await present(stop, expression, type),
    ignoreFocusOut: true,
  };
  const value = await whileStopped(services, stop, (gone) =>
    vscode.window.showInputBox(options, gone),
  );
  if (value !== undefined) {
    await set(stop, expression, value);
  }
}

/** The elements; of a large tensor its name. */
async function present(stop: Stop, expression: string, type: string): Promise<string> {
  const dims = /\[([\d, ]*)\]/.exec(type)?.[1] ?? "";
  const count = dims.split(",").reduce((product, dim) => product * Number(dim.trim() || 1), 1);
  if (!(count <= MOST_ELEMENTS)) {
    return expression;
  }
  const { result } = (await stop.session.customRequest("evaluate", {
    expression,
    frameId: stop.frameId,
    context: "clipboard",
  })) as DebugProtocol.EvaluateResponse["body"];
  return asTyped(result, type);
}

async function set({ session, frameId }: Stop, expression: string, value: string): Promise<void> {
  try {
    await session.customRequest("setExpression", { expression, value, frameId });
  } catch (error) {
    void vscode.window.showErrorMessage(messageOf(error));
  }
}
