/** What commands give a run: the graph's file, its inputs, sizes and weights, the device. */

import path from "node:path";
import * as vscode from "vscode";
import { toOptions } from "../debug/arguments";
import { configurationName } from "../debug/launch";
import { chooseGraph, findArguments, programOf, Sizes } from "../debug/prompts";
import { fileOf, type GraphTarget, graphOf } from "../debug/register";
import type { Again } from "../nan/again";
import type { Services } from "../services";

type Target = GraphTarget | vscode.Uri | undefined;

/** A run that is about to begin. */
interface RunArguments {
  file: string;
  /** Of the command line, the file first. */
  options: string[];
  /** A debug session with the same. */
  again: Again;
  /** Drops the sizes that were typed for it; gives whether there were any. */
  forgetSizes: () => Promise<boolean>;
}

/** What a run of a graph is given, for the command line and for the debugger; undefined if the user cancels. */
export async function runArguments(
  services: Services,
  target: Target,
): Promise<RunArguments | undefined> {
  const file = await fileFor(target);
  if (!file) {
    return undefined;
  }
  const folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(file));
  const cwd = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath ?? path.dirname(file);
  const program = await programOf(file);
  const named = graphOf(target);
  const chosen = named
    ? program.graphs.find((g) => g.name === named)
    : await chooseGraph(file, program);
  const config = {
    type: "opstep",
    request: "launch",
    name: path.basename(file),
    program: file,
    cwd,
  };
  if (!chosen) {
    // What is wrong with the text is told where it is read.
    const none = program.graphs.length === 0;
    const forgetSizes = async () => false;
    return none
      ? { file, options: [relative(file)], again: { config, folder }, forgetSizes }
      : undefined;
  }
  const sizes = new Sizes(services.context.workspaceState);
  const args = await findArguments(file, program, chosen);
  const open = await sizes.of(file, chosen, args);
  if (!open) {
    return undefined;
  }
  const complete = { ...args, symbols: open.sizes };
  const device = vscode.workspace.getConfiguration("opstep").get<string>("device", "cpu");
  return {
    file,
    options: [relative(file), "--graph", chosen.name, ...toOptions(complete), ...deviceOptions()],
    again: {
      config: {
        ...config,
        name: configurationName(file, chosen.name),
        graph: chosen.name,
        ...complete,
        device,
      },
      folder,
    },
    forgetSizes: () => sizes.forget(file, chosen.name),
  };
}

/** The program that a command is about; where none is open one is picked. */
export async function fileFor(target: Target): Promise<string | undefined> {
  const file = await fileOf(target);
  const open = vscode.workspace.textDocuments.find((d) => d.uri.fsPath === file && d.isDirty);
  // The command line reads what is on disk.
  return open && !(await open.save()) ? undefined : file;
}

/** `--graph`, `--input`, `--symbol`, `--params`; undefined if the user cancels. */
export async function optionsOf(
  file: string,
  graph: string | undefined,
  sizes: Sizes,
): Promise<string[] | undefined> {
  const program = await programOf(file);
  const chosen = graph
    ? program.graphs.find((g) => g.name === graph)
    : await chooseGraph(file, program);
  if (!chosen) {
    // The command line tells what is wrong with the text.
    return program.graphs.length === 0 ? [] : undefined;
  }
  const args = await findArguments(file, program, chosen);
  const open = await sizes.of(file, chosen, args);
  return open && ["--graph", chosen.name, ...toOptions({ ...args, symbols: open.sizes })];
}

/** `opstep plan` needs sizes, but no arrays. */
export function withoutInputs(options: string[]): string[] {
  return options.filter(
    (_, i) => !["--input", "--params"].some((o) => options[i] === o || options[i - 1] === o),
  );
}

export function deviceOptions(): string[] {
  const device = vscode.workspace.getConfiguration("opstep").get<string>("device", "cpu");
  return [...(device === "cpu" ? [] : ["--device", device]), ...modeOptions()];
}

export function modeOptions(): string[] {
  const named = vscode.workspace.getConfiguration("opstep").get<string>("mode", "auto");
  return named === "auto" ? [] : ["--mode", named];
}

/** As one would type it in the folder that commands run in. */
export function relative(file: string): string {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  const inside = folder && path.relative(folder, file);
  return inside && !inside.startsWith("..") ? inside : file;
}
