/** Tasks of type `opstep`: what the command line does, in tasks.json and in *Run Task*. */

import * as vscode from "vscode";
import type { Python } from "../python";
import { task } from "../shell";

interface Definition extends vscode.TaskDefinition {
  type: "opstep";
  /** The options behind `opstep`. */
  args: string[];
  cwd?: string;
}

export function registerTasks(python: Python): vscode.Disposable {
  return vscode.tasks.registerTaskProvider("opstep", {
    async provideTasks() {
      const found = await python.find();
      if (!found) {
        return [];
      }
      const files = await vscode.workspace.findFiles(
        "**/*.opg",
        "**/{.venv,venv,node_modules,build,dist}/**",
        50,
      );
      const names = files.map((uri) => vscode.workspace.asRelativePath(uri, false)).sort();
      const checks = names.map((name) => checkOf(found.path, name));
      return names.length > 1 ? [checkOf(found.path, ...names), ...checks] : checks;
    },
    async resolveTask(unresolved) {
      const { args, cwd } = unresolved.definition as Definition;
      if (!Array.isArray(args)) {
        return undefined;
      }
      const options = args.map(String);
      return task(await python.need(), options, {
        title: unresolved.name,
        definition: unresolved.definition,
        ...(cwd && { cwd }),
      });
    },
  });
}

function checkOf(python: string, ...files: string[]): vscode.Task {
  const args = ["check", ...files];
  const title = files.length > 1 ? "check all graphs" : `check ${files[0]}`;
  const check = task(python, args, { title, definition: { type: "opstep", args } });
  check.group = vscode.TaskGroup.Build;
  return check;
}
