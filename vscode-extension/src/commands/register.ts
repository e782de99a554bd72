/** Commands for the verbs of the command line: most run in a terminal, with what lies beside the program. */

import path from "node:path";
import * as vscode from "vscode";
import { checkProgram } from "../debug/problems";
import { Sizes } from "../debug/prompts";
import { type GraphTarget, graphOf } from "../debug/register";
import { showRun } from "../nan/hunt";
import { type Python, tellError } from "../python";
import type { Services } from "../services";
import { openWalkthrough, type Step, worked } from "../walkthrough";
import {
  deviceOptions,
  fileFor,
  modeOptions,
  optionsOf,
  relative,
  runArguments,
  withoutInputs,
} from "./arguments";
import { openExample } from "./examples";
import { Plans } from "./plans";
import { runOnScript } from "./scripts";
import { registerTasks } from "./tasks";
import * as verbs from "./verbs";

/** Steps of the walkthrough that a command is. */
const STEPS: Record<string, Step> = { runTraced: "timeline", runRecorded: "workspace" };

type Target = GraphTarget | vscode.Uri | undefined;

/** Exit codes: of a run that went well, of a program with errors, and of one that is too large for the machine. */
const OK = 0;
const PROGRAM = 1;
const MACHINE = 3;

export function registerCommands(services: Services, python: Python): vscode.Disposable {
  const sizes = new Sizes(services.context.workspaceState);
  const plans = new Plans(services);
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
      const onGraph = async () => {
        const args = await argsOf(target);
        return { code: args && (await services.show(args, { title: title(args) })) };
      };
      try {
        const ran = (await runOnScript(services, name, target)) ?? (await onGraph());
        const step = STEPS[name];
        if (step && ran.code === OK) {
          worked(step);
        }
      } catch (error) {
        tellError(error);
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
    vscode.commands.registerCommand("opstep.run", async (target?: Target) => {
      try {
        if (await runOnScript(services, "run", target)) {
          return;
        }
        const given = await runArguments(services, target);
        if (given && checkProgram(given.file)) {
          const args = ["run", ...given.options];
          const code = await showRun(services, args, given.again, title(args));
          if (code === PROGRAM || code === MACHINE) {
            await given.forgetSizes();
          }
        }
      } catch (error) {
        tellError(error);
      }
    }),
    run("debugTerminal", ["debug"]),
    plans.register(),
    vscode.commands.registerCommand("opstep.plan", async (target?: Target) => {
      try {
        const file = await fileFor(target);
        const options = file && (await optionsOf(file, graphOf(target), sizes));
        if (options && checkProgram(file)) {
          const graph = options[options.indexOf("--graph") + 1] ?? "";
          const args = [...withoutInputs(options), ...modeOptions()];
          await plans.show(file, graph, ["plan", relative(file), ...args]);
        }
      } catch (error) {
        tellError(error);
      }
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
    vscode.commands.registerCommand("opstep.openWalkthrough", openWalkthrough),
    vscode.commands.registerCommand("opstep.showLog", () => services.log.show()),
    registerTasks(python),
  );
}

function title(args: string[]): string {
  const file = args[1] && /\.(opg|db|pftrace)$/.test(args[1]) ? ` ${path.basename(args[1])}` : "";
  return `opstep ${args[0]}${file}`;
}
