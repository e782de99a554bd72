/** The extension's entry: makes what modules share, and registers each. */

import * as vscode from "vscode";
import { LanguageServer } from "./client";
import { registerCommands } from "./commands/register";
import { Live } from "./debug/live";
import { registerDebugger } from "./debug/register";
import * as graph from "./graph/view";
import * as nan from "./nan/view";
import { placeholders } from "./placeholders";
import { Python } from "./python";
import { keepSides } from "./room";
import type { Services } from "./services";
import { runInTerminal, runOpstep } from "./shell";
import { registerStatus } from "./status";
import { Stops } from "./stops";
import * as tensor from "./tensor/views";
import * as timeline from "./timeline/view";
import * as values from "./values/view";
import * as workspace from "./workspace/view";

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
    "opstep runs nothing in an untrusted folder. Syntax colouring, brackets and snippets work.",
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
  // Not waited for: who presses F5 at once does not wait for the language server.
  const started = language.start();
  const services: Services = {
    context,
    log,
    get stop() {
      return stops.stop;
    },
    onStop: stops.onStop,
    started,
    request: (method, params, token) => language.request(method, params, token),
    notify: (method, params) => language.notify(method, params),
    opstep: (args, options) => runOpstep(python, args, options),
    show: (args, options) => runInTerminal(python, args, options),
  };
  context.subscriptions.push(log, python, stops, language);
  const modules: Record<string, (services: Services) => vscode.Disposable> = {
    commands: (s) => registerCommands(s, python),
    debugger: (s) => registerDebugger(s, python),
    sides: () => keepSides(),
    status: (s) => registerStatus(s, python),
    live: (s) => new Live(s),
    values: values.register,
    tensor: tensor.register,
    nan: nan.register,
    graph: graph.register,
    timeline: timeline.register,
    workspace: workspace.register,
  };
  for (const [name, register] of Object.entries(modules)) {
    try {
      context.subscriptions.push(register(services));
    } catch (error) {
      log.error(`${name} could not be registered: ${error}`);
    }
  }
}
