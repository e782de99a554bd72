/** Launch configurations: configurations where there is none, completed where one leaves something open. */

import { existsSync } from "node:fs";
import path from "node:path";
import * as vscode from "vscode";
import { graphInView, graphInViewOrPicked } from "../inView";
import type { Python } from "../python";
import { addressError, isListening } from "./adapters";
import { type RunArguments, sizesOf } from "./arguments";
import { applyDefaults, configurationName, isScript, KERNEL, stopsScripts } from "./launch";
import { checkProgram } from "./problems";
import { chooseGraph, findArguments, programOf, type Sizes } from "./prompts";

const MOST_PROGRAMS = 50;
const SCRIPT: vscode.DebugConfiguration = {
  type: "opstep",
  request: "launch",
  name: "opstep: Python script",
  program: "${file}",
};

export class Configurations implements vscode.DebugConfigurationProvider {
  constructor(
    private readonly python: Python,
    private readonly sizes: Sizes,
    private readonly log: vscode.LogOutputChannel,
  ) {}

  /** For a new launch.json: the graphs of the file in the editor. */
  async provideDebugConfigurations(
    folder: vscode.WorkspaceFolder | undefined,
  ): Promise<vscode.DebugConfiguration[]> {
    const file = graphInView();
    const found = file ? await configurationsOf(file, folder) : [];
    return found.length > 0
      ? found
      : [
          {
            type: "opstep",
            request: "launch",
            name: "opstep: current file",
            program: "${file}",
            inputs: "random",
            stopOnEntry: true,
          },
        ];
  }

  /** F5 without a launch.json brings an empty configuration. */
  async resolveDebugConfiguration(
    folder: vscode.WorkspaceFolder | undefined,
    config: vscode.DebugConfiguration,
  ): Promise<vscode.DebugConfiguration | undefined> {
    if (!config.type && !config.request && !config.name) {
      return this.ofEditor(folder, config);
    }
    if (config.request === "attach" && config.connect) {
      // VS Code gives a session that a debugger starts that debugger's own type.
      return { ...config, type: KERNEL };
    }
    if (config.request !== "attach" && !config.program) {
      const file = activeScript() ?? graphInView();
      if (!file) {
        return refuse(
          `${config.name}: “program” is missing. Which .opg or .py file should run?`,
          "Open launch.json",
          () => vscode.commands.executeCommand("workbench.action.debug.configure"),
        );
      }
      return { ...config, program: file };
    }
    return config;
  }

  private async ofEditor(
    folder: vscode.WorkspaceFolder | undefined,
    config: vscode.DebugConfiguration,
  ): Promise<vscode.DebugConfiguration | undefined> {
    const document = vscode.window.activeTextEditor?.document;
    const isOurs = document?.languageId === "opg" || document?.languageId === "python";
    const file = isOurs ? await savedFile(document) : await graphInViewOrPicked();
    if (file && document?.languageId === "python") {
      return scriptConfiguration(file, folder, Boolean(config.noDebug));
    }
    return file ? this.launchOf(file, undefined, folder, Boolean(config.noDebug)) : undefined;
  }

  /** The configuration of a graph, with what lies beside its file; undefined if the user cancels. */
  async launchOf(
    file: string,
    graph: string | undefined,
    folder: vscode.WorkspaceFolder | undefined,
    noDebug = false,
  ): Promise<vscode.DebugConfiguration | undefined> {
    const program = await programOf(file);
    const chosen = graph
      ? program.graphs.find((g) => g.name === graph)
      : await chooseGraph(file, program);
    if (!chosen) {
      return program.graphs.length === 0 || graph
        ? refuse(`${path.basename(file)} has no graph${graph ? ` ${graph}` : ""} to debug.`)
        : undefined;
    }
    return {
      type: "opstep",
      request: "launch",
      name: configurationName(file, chosen.name),
      program: file,
      graph: chosen.name,
      ...(await findArguments(file, program, chosen)),
      cwd: folder?.uri.fsPath ?? path.dirname(file),
      // Without a breakpoint of the user's it would run through before one sees anything.
      stopOnEntry: !noDebug,
      ...(noDebug && { noDebug: true }),
    };
  }

  async resolveDebugConfigurationWithSubstitutedVariables(
    folder: vscode.WorkspaceFolder | undefined,
    config: vscode.DebugConfiguration,
  ): Promise<vscode.DebugConfiguration | undefined> {
    if (config.request === "attach") {
      return checkAttach(config);
    }
    if (!(await this.python.find()) && !(await this.python.refresh())) {
      this.python.complainAgain();
      return undefined;
    }
    const settings = vscode.workspace.getConfiguration("opstep");
    if (isScript(config.program)) {
      return this.ofScript(config, folder);
    }
    if (config.run) {
      return config; // of a workspace, which has its program and inputs
    }
    const complete = applyDefaults(config, {
      device: settings.get<string>("device", "cpu"),
      mode: settings.get<string>("mode", "auto"),
      folder: folder?.uri.fsPath,
    });
    const file = path.resolve(complete.cwd ?? "", String(complete.program));
    const problem = programError(file);
    if (problem) {
      return refuse(problem);
    }
    if (!(await saveBeforeRun(file)) || !checkProgram(file)) {
      return undefined;
    }
    return this.completed(complete, file);
  }

  /** A script has devices and data of its own; what is open is its Python. */
  private async ofScript(
    config: vscode.DebugConfiguration,
    folder: vscode.WorkspaceFolder | undefined,
  ): Promise<vscode.DebugConfiguration | undefined> {
    const cwd = config.cwd ?? folder?.uri.fsPath ?? path.dirname(config.program);
    const file = path.resolve(cwd, config.program);
    const problem = programError(file);
    if (problem) {
      return refuse(problem);
    }
    if (!(await saveBeforeRun(file))) {
      return undefined;
    }
    const python = config.python || (await this.python.active(vscode.Uri.file(file)));
    return { ...consoleShown(config), cwd, ...(python && { python }) };
  }

  /** Chooses the graph, and asks for sizes that are open. */
  private async completed(
    config: vscode.DebugConfiguration,
    file: string,
  ): Promise<vscode.DebugConfiguration | undefined> {
    const program = await programOf(file);
    const graph = config.graph
      ? program.graphs.find((g) => g.name === config.graph)
      : await chooseGraph(file, program);
    if (!graph) {
      // Where the text is at fault the debugger tells more than we know.
      return config.graph || program.graphs.length === 0 ? config : undefined;
    }
    const sizes = await this.sizes.of(file, graph, config as RunArguments);
    if (!sizes) {
      return undefined;
    }
    if (sizes.remembered) {
      const assignments = Object.entries(sizes.sizes).map(([name, size]) => `${name}=${size}`);
      this.log.info(
        `${configurationName(file, graph.name)}: sizes as last time: ${assignments.join(", ")}`,
      );
    }
    return {
      ...config,
      graph: graph.name,
      inputs: config.inputs ?? (graph.inputs.length > 0 ? "random" : undefined),
      symbols: { ...sizes.sizes, ...sizesOf(config.symbols) },
    };
  }
}

/** A terminal is not covered by the Debug Console, where nothing of the script's is written. */
function consoleShown(config: vscode.DebugConfiguration): vscode.DebugConfiguration {
  return (config.console ?? "internalConsole") === "internalConsole"
    ? config
    : { internalConsoleOptions: "neverOpen", ...config };
}

/** The configuration of a script. */
function scriptConfiguration(
  file: string,
  folder: vscode.WorkspaceFolder | undefined,
  noDebug: boolean,
): vscode.DebugConfiguration {
  return {
    type: "opstep",
    request: "launch",
    name: path.basename(file),
    program: file,
    cwd: folder?.uri.fsPath ?? path.dirname(file),
    // Without a breakpoint of the user's it would run through before one sees anything.
    stopOnEntry: !noDebug && !vscode.debug.breakpoints.some(stopsScripts),
    ...(noDebug && { noDebug: true }),
  };
}

/** One for each graph of the files of a folder, the one in the editor first; and the script there. */
export class DynamicConfigurations implements vscode.DebugConfigurationProvider {
  async provideDebugConfigurations(
    folder: vscode.WorkspaceFolder | undefined,
  ): Promise<vscode.DebugConfiguration[]> {
    const active = graphInView();
    const found = folder
      ? await vscode.workspace.findFiles(
          new vscode.RelativePattern(folder, "**/*.opg"),
          "**/{.venv,venv,node_modules,build,dist}/**",
          MOST_PROGRAMS,
        )
      : [];
    const files = [...new Set([...(active ? [active] : []), ...found.map((uri) => uri.fsPath)])];
    const all = await Promise.all(files.map((file) => configurationsOf(file, folder)));
    return [...(activeScript() ? [SCRIPT] : []), ...all.flat()];
  }
}

async function configurationsOf(
  file: string,
  folder: vscode.WorkspaceFolder | undefined,
): Promise<vscode.DebugConfiguration[]> {
  const program = await programOf(file).catch(() => undefined);
  const configurations = (program?.graphs ?? []).map(async (graph) => {
    const args = await findArguments(file, program as NonNullable<typeof program>, graph);
    return {
      type: "opstep",
      request: "launch",
      name: configurationName(file, graph.name),
      program: relative(file, folder),
      graph: graph.name,
      ...(JSON.parse(
        JSON.stringify(args, (_, value) =>
          typeof value === "string" && path.isAbsolute(value) ? relative(value, folder) : value,
        ),
      ) as RunArguments),
      stopOnEntry: true,
    };
  });
  return Promise.all(configurations);
}

/** With `${workspaceFolder}`, as it stands in a launch.json. */
function relative(file: string, folder: vscode.WorkspaceFolder | undefined): string {
  const inside = folder && path.relative(folder.uri.fsPath, file);
  return inside && !inside.startsWith("..") ? `\${workspaceFolder}/${inside}` : file;
}

/** The Python script in the editor, if it is a file. */
function activeScript(): string | undefined {
  const document = vscode.window.activeTextEditor?.document;
  return document?.languageId === "python" && document.uri.scheme === "file"
    ? document.uri.fsPath
    : undefined;
}

/** Where a document is on disk; one that never was is saved first, if the user likes. */
async function savedFile(document: vscode.TextDocument): Promise<string | undefined> {
  if (document.uri.scheme === "file") {
    return document.uri.fsPath;
  }
  if (document.isUntitled) {
    const picked = await vscode.window.showInformationMessage(
      "The debugger runs files: save this one first.",
      "Save…",
    );
    const saved = picked ? await vscode.workspace.save(document.uri) : undefined;
    return saved?.scheme === "file" ? saved.fsPath : undefined;
  }
  void vscode.window.showErrorMessage(
    `The debugger runs local files only, not ${document.uri.scheme}: documents. Save a copy to a folder.`,
  );
  return undefined;
}

/** Whether to go on: a file with changes is saved, or run as it was saved. */
async function saveBeforeRun(file: string): Promise<boolean> {
  const open = vscode.workspace.textDocuments.find((d) => d.uri.fsPath === file && d.isDirty);
  if (!open) {
    return true;
  }
  const picked = await vscode.window.showWarningMessage(
    `${path.basename(file)} has unsaved changes.`,
    { modal: true, detail: "The debugger runs the file on disk." },
    "Save and Run",
    "Run as Saved",
  );
  return picked === "Save and Run" ? open.save() : picked === "Run as Saved";
}

function programError(file: string): string | undefined {
  if (!existsSync(file)) {
    return `${file} does not exist: it is the “program” of the launch configuration.`;
  }
  return undefined;
}

/** An attach configuration whose program listens; else what to do is said. */
async function checkAttach(
  config: vscode.DebugConfiguration,
): Promise<vscode.DebugConfiguration | undefined> {
  const host = config.host ?? "127.0.0.1";
  const problem = addressError(host, config.port);
  if (problem) {
    return refuse(problem);
  }
  if (!(await isListening(host, config.port))) {
    return refuse(
      `Nothing listens on ${host}:${config.port}. Start the Python program first: opstep debug --listen ${config.port} --wait train.py, or one that calls opstep.debug.listen(${config.port}).`,
    );
  }
  // We connect to the program itself: it needs no port to relay to.
  return config;
}

/** Says why not; the session ends there, whatever becomes of the message. */
function refuse(text: string, action?: string, act?: () => Thenable<unknown>): undefined {
  void vscode.window
    .showErrorMessage(text, ...(action ? [action] : []))
    .then((picked) => (picked && act ? act() : undefined));
  return undefined;
}
