/** Launch configurations: configurations where there is none, completed where one leaves something open. */

import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import path from "node:path";
import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import { graphInView, graphInViewOrPicked, scriptInView } from "../inView";
import type { Python } from "../python";
import { addressError, isListening } from "./adapters";
import { type RunArguments, sizesOf } from "./arguments";
import { parseEnvFile } from "./envFile";
import {
  applyDefaults,
  configurationName,
  isKernel,
  isPython,
  isScript,
  KERNEL,
  pythonDefaults,
} from "./launch";
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
    if (isKernel(config)) {
      return { ...config, type: KERNEL };
    }
    if (config.request !== "attach" && !config.program && !isPython(config)) {
      const file = scriptInView() ?? graphInView();
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
    if (config.request === "attach" && !isPython(config)) {
      return checkAttach(config);
    }
    if (!(await this.python.find()) && !(await this.python.refresh())) {
      this.python.complainAgain();
      return undefined;
    }
    const settings = vscode.workspace.getConfiguration("opstep");
    if (isPython(config)) {
      return this.ofPython(config, folder);
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

  /** Debugpy's attributes pass as they are; what is open is completed as the Python extension does it. */
  private async ofPython(
    config: vscode.DebugConfiguration,
    folder: vscode.WorkspaceFolder | undefined,
  ): Promise<vscode.DebugConfiguration | undefined> {
    const complete = { workspaceFolder: folder?.uri.fsPath, ...pythonDefaults(config) };
    if (config.request === "attach") {
      return complete; // also to a process that another session has started
    }
    const script = isScript(config.program) ? config.program : undefined;
    const beside = script && path.isAbsolute(script) ? path.dirname(script) : undefined;
    const cwd: string | undefined = config.cwd ?? folder?.uri.fsPath ?? beside;
    const file = script && path.resolve(cwd ?? "", script);
    const problem = file && programError(file);
    if (problem) {
      return refuse(problem);
    }
    if (file && !(await saveBeforeRun(file))) {
      return undefined;
    }
    const python = config.python || (await this.python.ofScripts(file, folder));
    try {
      const env = await environmentOf(config, folder);
      const program = file && { program: file };
      return { ...complete, ...program, ...(cwd && { cwd }), ...(env && { env }), python };
    } catch (error) {
      return refuse(`envFile: ${messageOf(error)}`);
    }
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

/** `env`, over what `envFile` has: the one that is named, or `.env` in the folder if it is there. */
async function environmentOf(
  config: vscode.DebugConfiguration,
  folder: vscode.WorkspaceFolder | undefined,
): Promise<Record<string, string> | undefined> {
  const usual = folder && path.join(folder.uri.fsPath, ".env");
  const file = config.envFile || (usual && existsSync(usual) ? usual : undefined);
  if (!file) {
    return config.env;
  }
  return { ...parseEnvFile(await readFile(file, "utf8"), process.env), ...config.env };
}

/** The configuration of a script. */
export function scriptConfiguration(
  file: string,
  folder: vscode.WorkspaceFolder | undefined,
  noDebug = false,
): vscode.DebugConfiguration {
  return {
    type: "opstep",
    request: "launch",
    name: path.basename(file),
    program: file,
    cwd: folder?.uri.fsPath ?? path.dirname(file),
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
    return [...(scriptInView() ? [SCRIPT] : []), ...all.flat()];
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
