/** The debugger: its types, its configurations, its commands. */

import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import { scriptOf } from "../commands/scripts";
import { pickFile } from "../dialogs";
import { followSight, graphInView, graphInViewOrPicked } from "../inView";
import type { Python } from "../python";
import type { Services } from "../services";
import { followWalkthrough } from "../walkthrough";
import { registerAdapters } from "./adapters";
import { showDebugView } from "./debugView";
import { registerEditing } from "./editing";
import { showFailures } from "./failures";
import { enterKernel, followKernels, runToLine } from "./kernels";
import { isPython } from "./launch";
import { LaunchProblems } from "./problems";
import { pickArgs, pickProcess } from "./processes";
import { chooseGraph, findArguments, followCursor, programOf, Sizes } from "./prompts";
import { Configurations, DynamicConfigurations, scriptConfiguration } from "./provider";
import { PythonLines, toggleSourceView } from "./pythonLines";
import { setValue } from "./setValue";
import { breakOnNan, copyStatistics, type VariableContext } from "./variables";

/** What code lenses and menus hand to commands on a graph. */
export interface GraphTarget {
  uri?: string | vscode.Uri;
  graph?: string;
}

export function registerDebugger(services: Services, python: Python): vscode.Disposable {
  const sizes = new Sizes(services.context.workspaceState);
  const problems = new LaunchProblems(sizes, services.log);
  const configurations = new Configurations(python, sizes, services.log);
  const command = <A extends unknown[]>(
    name: string,
    act: (...args: A) => Promise<unknown> | unknown,
  ) =>
    vscode.commands.registerCommand(name, async (...args: A) => {
      try {
        return await act(...args);
      } catch (error) {
        void vscode.window.showErrorMessage(messageOf(error));
        return undefined;
      }
    });
  const debug = async (target?: GraphTarget | vscode.Uri) => {
    const script = scriptOf(target);
    return script
      ? debugScript(script)
      : startDebugging(configurations, await fileOf(target), graphOf(target));
  };
  return vscode.Disposable.from(
    registerAdapters(services, python),
    registerEditing(services),
    followCursor(),
    followSight(services),
    followWalkthrough(),
    followKernels(),
    showDebugView(),
    showFailures(),
    followPython(),
    problems,
    vscode.debug.registerDebugAdapterTrackerFactory("opstep", problems),
    vscode.debug.registerDebugConfigurationProvider("opstep", configurations),
    vscode.debug.registerDebugConfigurationProvider(
      "opstep",
      new DynamicConfigurations(),
      vscode.DebugConfigurationProviderTriggerKind.Dynamic,
    ),
    command("opstep.debug", debug),
    command("opstep.debugScript", debug),
    command("opstep.enterKernel", () => enterKernel(services)),
    command("opstep.runToLine", () => runToLine(services)),
    command("opstep.toggleSourceView", () => toggleSourceView(services)),
    new PythonLines(services),
    command("opstep.breakOnNan", (context?: VariableContext) => breakOnNan(services, context)),
    command("opstep.setValue", (context?: VariableContext) => setValue(services, context)),
    command("opstep.copyStatistics", (context?: VariableContext) =>
      copyStatistics(services, context),
    ),
    command("opstep.changeSizes", async () => {
      const file = await graphInViewOrPicked();
      const program = file ? await programOf(file) : undefined;
      const graph = file && program && (await chooseGraph(file, program));
      if (file && graph) {
        await sizes.of(file, graph, await findArguments(file, program, graph), true);
      }
    }),
    command("opstep.pickGraph", async (config?: { program?: string }) => {
      const file = programFile(config);
      return file && (await chooseGraph(file, await programOf(file), true))?.name;
    }),
    command("opstep.pickParams", () => pickFile("Weights", { safetensors: ["safetensors"] })),
    command("opstep.pickInput", () => pickFile("An input", { arrays: ["npy", "npz"] })),
    command("opstep.pickProcess", pickProcess),
    command("opstep.pickArgs", () => pickArgs(services.context.workspaceState)),
    command("opstep.pickProgram", () => pickFile("A graph", { graphs: ["opg"] })),
  );
}

/** A key for menus: what commands ask of a run of a graph, a session on Python does not know. */
function followPython(): vscode.Disposable {
  return vscode.debug.onDidChangeActiveDebugSession((session) => {
    const onPython = session?.type === "opstep" && isPython(session.configuration);
    void vscode.commands.executeCommand("setContext", "opstep.python", onPython);
  });
}

async function debugScript(file: string): Promise<void> {
  const folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(file));
  await vscode.debug.startDebugging(folder, scriptConfiguration(file, folder));
}

async function startDebugging(
  configurations: Configurations,
  file: string | undefined,
  graph: string | undefined,
): Promise<void> {
  if (!file) {
    return; // none was picked
  }
  const folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(file));
  const config = await configurations.launchOf(file, graph, folder);
  if (config) {
    await vscode.debug.startDebugging(folder, config);
  }
}

/** The file that a command is about: its own, the one that is in view, or one that is picked. */
export async function fileOf(
  target: GraphTarget | vscode.Uri | undefined,
): Promise<string | undefined> {
  const uri = target instanceof vscode.Uri ? target : target?.uri;
  if (!uri) {
    return graphInViewOrPicked();
  }
  return (typeof uri === "string" ? vscode.Uri.parse(uri) : vscode.Uri.from(uri)).fsPath;
}

export function graphOf(target: GraphTarget | vscode.Uri | undefined): string | undefined {
  return target instanceof vscode.Uri ? undefined : target?.graph;
}

/** `program` of a configuration whose variables may not be replaced yet. */
function programFile(config: { program?: string } | undefined): string | undefined {
  const named = config?.program;
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath ?? "";
  const file = named?.replace("${workspaceFolder}", folder).replace("${file}", graphInView() ?? "");
  return file && !file.includes("${") ? file : graphInView();
}
