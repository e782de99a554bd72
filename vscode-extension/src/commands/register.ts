/** Commands for the verbs of the command line: they run in a terminal, with what lies beside the program. */

import path from "node:path";
import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import { toOptions } from "../debug/arguments";
import { chooseGraph, findArguments, programOf, Sizes } from "../debug/prompts";
import { fileOf, type GraphTarget, graphOf } from "../debug/register";
import { pickFile } from "../dialogs";
import type { Python } from "../python";
import type { Services } from "../services";
import { openExample } from "./examples";
import { registerTasks } from "./tasks";
import * as verbs from "./verbs";

type Target = GraphTarget | vscode.Uri | undefined;

export function registerCommands(services: Services, python: Python): vscode.Disposable {
  const sizes = new Sizes(services.context.workspaceState);
  /** The file, and what a run of its graph is given, as options. */
  const runOptions =
    (target: Target, withDevice = true) =>
    async () => {
      const file = await fileFor(target);
      const options = file && (await optionsOf(file, graphOf(target), sizes));
      return options && [relative(file), ...options, ...(withDevice ? deviceOptions() : [])];
    };
  const verb = (name: string, argsOf: (target: Target) => verbs.Args) =>
    vscode.commands.registerCommand(`opstep.${name}`, async (target?: Target) => {
      try {
        const args = await argsOf(target);
        if (args) {
          await services.show(args, { title: title(args) });
        }
      } catch (error) {
        void vscode.window.showErrorMessage(messageOf(error));
      }
    });
  /** A verb that takes a run's options alone. */
  const run = (name: string, command: string[] = [name]) =>
    verb(name, async (target) => {
      const options = await runOptions(target)();
      return options && [...command, ...options];
    });
  /** A verb that takes a file alone. */
  const onFile = (name: string) =>
    verb(name, async (target) => {
      const file = await fileFor(target);
      return file && [name, relative(file)];
    });
  return vscode.Disposable.from(
    run("run"),
    run("hunt"),
    run("debugTerminal", ["debug"]),
    verb("plan", async (target) => {
      const file = await fileFor(target);
      const options = file && (await optionsOf(file, graphOf(target), sizes));
      return options && ["plan", relative(file), ...withoutInputs(options), ...modeOptions()];
    }),
    verb("runTraced", (target) => verbs.runTraced(runOptions(target))),
    verb("runRecorded", (target) => verbs.runRecorded(runOptions(target))),
    verb("diff", (target) => verbs.diff(runOptions(target, false))),
    verb("bench", (target) => verbs.bench(runOptions(target))),
    onFile("check"),
    onFile("fmt"),
    verb("ops", verbs.ops),
    verb("ws", verbs.workspace),
    verb("trace", verbs.trace),
    verb("doctor", async () => ["doctor"]),
    verb("demo", async () => ["demo"]),
    vscode.commands.registerCommand("opstep.selectPython", () => python.select()),
    vscode.commands.registerCommand("opstep.openExample", openExample),
    vscode.commands.registerCommand("opstep.showLog", () => services.log.show()),
    registerTasks(python),
  );
}

/** The program that a command is about; where none is open one is picked. */
async function fileFor(target: Target): Promise<string | undefined> {
  const file = fileOf(target) ?? (await pickFile("Which graph?", { graphs: ["opg"] }));
  const open = vscode.workspace.textDocuments.find((d) => d.uri.fsPath === file && d.isDirty);
  // The command line reads what is on disk.
  return open && !(await open.save()) ? undefined : file;
}

/** `--graph`, `--input`, `--symbol`, `--params`; undefined if the user cancels. */
async function optionsOf(
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
function withoutInputs(options: string[]): string[] {
  return options.filter(
    (_, i) => !["--input", "--params"].some((o) => options[i] === o || options[i - 1] === o),
  );
}

function deviceOptions(): string[] {
  const device = vscode.workspace.getConfiguration("opstep").get<string>("device", "cpu");
  return [...(device === "cpu" ? [] : ["--device", device]), ...modeOptions()];
}

function modeOptions(): string[] {
  const named = vscode.workspace.getConfiguration("opstep").get<string>("mode", "auto");
  return named === "auto" ? [] : ["--mode", named];
}

function title(args: string[]): string {
  const file = args[1] && /\.(opg|db|pftrace)$/.test(args[1]) ? ` ${path.basename(args[1])}` : "";
  return `opstep ${args[0]}${file}`;
}

/** As one would type it in the folder that commands run in. */
function relative(file: string): string {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  const inside = folder && path.relative(folder, file);
  return inside && !inside.startsWith("..") ? inside : file;
}
