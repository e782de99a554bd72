/** Which tensor to open: one of those that a frame has, or an expression that is typed. */

import type { DebugProtocol } from "@vscode/debugprotocol";
import * as vscode from "vscode";
import type { FrameValues } from "../../shared/values/messages";
import { whileStopped } from "../debug/questions";
import type { Services, Stop } from "../services";
import { valuesOf } from "../values/requests";

const MOST = 500; // values that are listed; of more, the newest

/** A value, and what gives it; without that, what was typed. */
export interface Choice extends vscode.QuickPickItem {
  expression?: string;
}

/** Asks; `selected`, what the cursor is on, is proposed. Undefined where the user or the run goes on. */
export function pickTensor(
  services: Services,
  stop: Stop,
  selected: string | undefined,
): Promise<string | undefined> {
  return whileStopped(services, stop, async (gone) => {
    const quick = vscode.window.createQuickPick<Choice>();
    quick.title = "Open Tensor";
    quick.placeholder = "A value, or an expression over values";
    quick.busy = true;
    let choices: Choice[] = [];
    const typed: Choice = { label: "$(symbol-operator) this expression", alwaysShow: true };
    quick.onDidChangeValue((text) => {
      const known = !text.trim() || choices.some(({ label }) => label === text.trim());
      quick.items = known ? choices : [...choices, { ...typed, description: text }];
    });
    const answer = new Promise<string | undefined>((resolve) => {
      quick.onDidAccept(() => {
        resolve(expressionOf(quick.value, quick.selectedItems[0], choices));
        quick.hide();
      });
      quick.onDidHide(() => resolve(undefined));
      gone.onCancellationRequested(() => quick.hide());
    });
    quick.show();
    try {
      choices = await choicesAt(stop);
      quick.items = choices;
      const proposed = choices.find(({ label }) => label === selected) ?? choices[0];
      quick.activeItems = proposed ? [proposed] : [];
    } catch (error) {
      services.log.debug(`no values to choose from: ${error}`);
    }
    quick.busy = false;
    return answer.finally(() => quick.dispose());
  });
}

/** A name that was typed to its end is meant, whatever else begins so; then the value that is chosen. */
export function expressionOf(
  text: string,
  picked: Choice | undefined,
  choices: readonly Choice[],
): string | undefined {
  const typed = text.trim();
  const exact = choices.find(({ label }) => label === typed);
  return exact?.expression ?? picked?.expression ?? (typed || undefined);
}

async function choicesAt(stop: Stop): Promise<Choice[]> {
  const [frame, locals] = await Promise.all([
    valuesOf(stop, { most: MOST }),
    stop.python && !stop.isScript ? localsOf(stop) : [],
  ]);
  return choicesOf(frame, locals);
}

/** Python's variables, then what was computed, the newest first, then what was given. */
export function choicesOf(
  { values }: Pick<FrameValues, "values">,
  locals: readonly DebugProtocol.Variable[],
): Choice[] {
  const found = locals.map(
    ({ name, type, value, evaluateName }): Choice => ({
      label: name,
      description: [type, value].filter(Boolean).join("  "),
      expression: evaluateName ?? name,
    }),
  );
  const computed = values.filter(({ kind }) => kind === "value").reverse();
  const given = values.filter(({ kind }) => kind !== "value");
  for (const { name, type, text, expression } of [...computed, ...given]) {
    if (!found.some(({ label }) => label === name)) {
      const description = [type, text].filter(Boolean).join("  ");
      found.push({ label: name, description, expression: expression ?? name });
    }
  }
  return found;
}

async function localsOf({ session, frameId }: Stop): Promise<DebugProtocol.Variable[]> {
  const { scopes }: DebugProtocol.ScopesResponse["body"] = await session.customRequest("scopes", {
    frameId,
  });
  const reference = scopes.find(({ name }) => name === "Locals")?.variablesReference;
  if (!reference) {
    return [];
  }
  const answer: DebugProtocol.VariablesResponse["body"] = await session.customRequest("variables", {
    variablesReference: reference,
  });
  return answer.variables.filter(({ memoryReference }) => memoryReference);
}
