/** Commands on a Python script, which says itself how often it steps, and on what. */

import path from "node:path";
import * as vscode from "vscode";
import { isPython, isScript } from "../debug/launch";
import type { GraphTarget } from "../debug/register";
import { scriptInView } from "../inView";
import type { Services } from "../services";
import { relative } from "./arguments";
import { timelineFile, workspaceFile } from "./verbs";

type Target = GraphTarget | vscode.Uri | undefined;

/** The script that a command is about: that of a menu, or the one in the editor in front. */
export function scriptOf(target: Target): string | undefined {
  const uri = target instanceof vscode.Uri ? target : target?.uri;
  if (!uri) {
    const session = vscode.debug.activeDebugSession;
    const onGraph = session?.type === "opstep" && !isPython(session.configuration);
    return onGraph ? undefined : scriptInView(); // of a graph that is debugged, Python is the text
  }
  const file = (typeof uri === "string" ? vscode.Uri.parse(uri) : vscode.Uri.from(uri)).fsPath;
  return isScript(file) ? file : undefined;
}

/** Options of a command, before the script's name: what follows it is the script's. */
const OPTIONS: Record<string, (name: string) => Promise<string[] | undefined>> = {
  run: async () => ["run"],
  hunt: async () => ["hunt"],
  runTraced: async () => {
    const file = await timelineFile();
    return file ? ["run", "--trace", file] : undefined;
  },
  runRecorded: async (name) => {
    const file = await workspaceFile(name);
    return file ? ["run", "--workspace", file] : undefined;
  },
};

/** Runs a command on the script that it is about, in a terminal. */
export async function runOnScript(
  services: Services,
  command: string,
  target: Target,
  env?: Record<string, string>,
): Promise<{ code: number | undefined } | undefined> {
  const options = OPTIONS[command];
  const script = options && scriptOf(target);
  if (!script) {
    return undefined; // it is about a graph
  }
  const open = vscode.workspace.textDocuments.find((d) => d.uri.fsPath === script && d.isDirty);
  const name = path.basename(script);
  const words = open && !(await open.save()) ? undefined : await options(name);
  const title = `opstep ${words?.[0]} ${name}`;
  const code = words && (await services.show([...words, relative(script)], { title, env }));
  return { code };
}
