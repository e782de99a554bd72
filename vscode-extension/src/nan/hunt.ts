/** *Hunt NaN*: quietly, with progress; what is found opens the report. So does a run that ends with a NaN. */

import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import * as vscode from "vscode";
import { runArguments } from "../commands/arguments";
import { runOnScript, scriptOf } from "../commands/scripts";
import { checkProgram, type Problem, tellProblems } from "../debug/problems";
import type { GraphTarget } from "../debug/register";
import { tellError } from "../python";
import type { Services } from "../services";
import { worked } from "../walkthrough";
import { type Again, showHunted } from "./found";
import type { Hunted } from "./reports";

/** `model.opg:2:24: error: the 4 elements of f32[4] do not divide by 3` */
const ERROR = /^(.+?):(\d+):(\d+): error: (.*)$/gm;
const FOUND = 5;

export function registerHunt(services: Services): vscode.Disposable {
  return vscode.Disposable.from(
    vscode.commands.registerCommand("opstep.hunt", async (target?: GraphTarget | vscode.Uri) => {
      try {
        await hunt(services, target);
      } catch (error) {
        tellError(error);
      }
    }),
    vscode.debug.registerDebugAdapterTrackerFactory("opstep", {
      createDebugAdapterTracker: (session) => ({
        onDidSendMessage: (message) => {
          const hunted: Hunted | undefined = message.body?.data?.findings;
          if (message.event === "output" && hunted) {
            const { configuration: config, workspaceFolder: folder } = session;
            showHunted({ hunted, again: { config, folder } });
          }
        },
      }),
    }),
  );
}

async function hunt(services: Services, target: GraphTarget | vscode.Uri | undefined) {
  const onScript = await huntScript(services, target);
  const given = onScript ? undefined : await runArguments(services, target);
  if (!given || !checkProgram(given.file)) {
    return;
  }
  const { options, again, file } = given;
  // A notification has room for one line, and what the hunt is at stands behind it.
  const title = `Hunt NaN: ${again.config.graph ?? path.basename(file)}`;
  const result = await vscode.window.withProgress(
    { location: vscode.ProgressLocation.Notification, title, cancellable: true },
    async (progress, token) => {
      const onProgress = (message: string) => progress.report({ message });
      const ended = await services.opstep(["hunt", ...options, "--json"], { token, onProgress });
      return token.isCancellationRequested ? undefined : ended;
    },
  );
  if (!result) {
    return;
  }
  const hunted = read(result.stdout);
  if (!hunted || (result.code !== 0 && result.code !== FOUND)) {
    await failed(services, again, given.forgetSizes, result.stderr);
  } else if (hunted.findings.length > 0 || hunted.found) {
    showHunted({ hunted, again });
  } else {
    worked("nan");
    const steps = hunted.steps === 1 ? "" : ` in ${hunted.steps.toLocaleString("en-US")} steps`;
    void vscode.window.showInformationMessage(
      `${hunted.graph}: no NaN and no infinity came out${steps}.`,
    );
  }
}

/** In a terminal, where the script writes and reads; true where the hunt is about one. */
async function huntScript(
  services: Services,
  target: GraphTarget | vscode.Uri | undefined,
): Promise<boolean> {
  const script = scriptOf(target);
  if (!script) {
    return false;
  }
  const name = `Python: ${path.basename(script)}`;
  const config = { type: "opstep", request: "launch", name, program: script };
  const folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(script));
  await withFindings({ config, folder }, async (env) => {
    const ran = await runOnScript(services, "hunt", target, env);
    return ran?.code;
  });
  return true;
}

/** What is wrong with the program or what it was given: a Problem, with its place, where it has one. */
async function failed(
  services: Services,
  { config }: Again,
  forgetSizes: () => Promise<boolean>,
  text: string,
): Promise<void> {
  const base = String(config.cwd ?? "");
  const problems = [...text.matchAll(ERROR)].map(
    ([, file = "", line, column, message = ""]): Problem => ({
      path: path.resolve(base, file),
      line: Number(line),
      column: Number(column),
      endLine: Number(line),
      endColumn: Number(column) + 1,
      message,
    }),
  );
  const typed = await forgetSizes();
  if (problems.length === 0) {
    services.log.error(text);
  }
  const [line = ""] = text.trim().split("\n");
  const why = line.replace(/^error: /, "") || "The hunt could not be run.";
  if (await tellProblems(problems, typed, why)) {
    await vscode.commands.executeCommand("opstep.hunt", {
      uri: vscode.Uri.file(String(config.program)),
      graph: config.graph,
    });
  }
}

/** Shows a run in a terminal; where a result is not finite, where that was born. */
export async function showRun(
  services: Services,
  args: string[],
  again: Again | undefined,
  title: string,
): Promise<number | undefined> {
  return await withFindings(again, (env) => services.show(args, { title, env }));
}

/** Runs what writes findings to a file that its environment names, and shows them. */
async function withFindings(
  again: Again | undefined,
  run: (env: Record<string, string>) => Promise<number | undefined>,
): Promise<number | undefined> {
  const folder = await mkdtemp(path.join(tmpdir(), "opstep-"));
  try {
    const file = path.join(folder, "findings.json");
    const code = await run({ OPSTEP_FINDINGS: file });
    const hunted = read(await readFile(file, "utf8").catch(() => ""));
    if (hunted?.found && again) {
      showHunted({ hunted, again });
    }
    return code;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function read(text: string): Hunted | undefined {
  try {
    return JSON.parse(text) as Hunted;
  } catch {
    return undefined;
  }
}
