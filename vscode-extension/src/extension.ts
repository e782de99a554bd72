/** The extension's entry: makes what modules share, and registers each. */

import * as vscode from "vscode";
import { LanguageServer } from "./client";
import { registerCommands } from "./commands/register";
import { Live } from "./debug/live";
import { registerDebugger } from "./debug/register";
import { modules, type Register } from "./modules";
import { placeholders } from "./placeholders";
import { Python } from "./python";
import type { Services } from "./services";
import { quietly, visibly } from "./shell";
import { registerStatus } from "./status";
import { Stops } from "./stops";

let server: LanguageServer | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  if (!vscode.workspace.isTrusted) {
    // Colours and snippets are there without us; nothing of the folder may choose what is run.
    const stand = placeholders(context, askForTrust);
    context.subscriptions.push(
      stand,
      vscode.workspace.onDidGrantWorkspaceTrust(() => {
        stand.dispose();
        return start(context);
      }),
    );
    return;
  }
  await start(context);
}

export async function deactivate(): Promise<void> {
  await server?.stop();
}

async function askForTrust(): Promise<void> {
  const picked = await vscode.window.showInformationMessage(
    "opstep runs nothing in a folder that is not trusted. Colours, brackets and snippets work.",
    "Manage Trust",
  );
  if (picked) {
    await vscode.commands.executeCommand("workbench.trust.manage");
  }
}

async function start(context: vscode.ExtensionContext): Promise<void> {
  const log = vscode.window.createOutputChannel("opstep", { log: true });
  const python = new Python(context, log);
  const stops = new Stops(log);
  const language = new LanguageServer(python, log);
  server = language;
  const services: Services = {
    context,
    log,
    get stop() {
      return stops.stop;
    },
    onStop: stops.onStop,
    request: (method, params, token) => language.request(method, params, token),
    notify: (method, params) => language.notify(method, params),
    opstep: (args, options) => quietly(python, args, options),
    show: (args, options) => visibly(python, args, options),
  };
  const live = new Live(services);
  language.beforeInlineValues = (frameId) => live.settled(frameId);
  context.subscriptions.push(log, python, stops, language, live);
  const all: Record<string, Register> = {
    commands: (s) => registerCommands(s, python),
    debugger: (s) => registerDebugger(s, python),
    status: (s) => registerStatus(s, python),
    ...modules,
  };
  for (const [name, register] of Object.entries(all)) {
    try {
      context.subscriptions.push(register(services));
    } catch (error) {
      log.error(`${name} could not be registered: ${error}`);
    }
  }
  // Not waited for: who presses F5 at once does not wait for the language server.
  void language.start();
}
