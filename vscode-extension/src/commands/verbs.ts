/** The command line's verbs that need a question or two before they run. */

import path from "node:path";
import * as vscode from "vscode";
import { askSavePath, type Filters, pickFile } from "../dialogs";

const PROGRAMS = { graphs: ["opg"] };
const WORKSPACES = { workspaces: ["db"] };
const TRACES = { timelines: ["pftrace"] };

/** The arguments of `opstep`; undefined if the user cancels. */
export type Args = Promise<string[] | "" | undefined>;

/** The options of a run of the present graph: file, graph, inputs, sizes, weights, device, mode. */
type RunOptions = () => Args;

interface Choice extends vscode.QuickPickItem {
  args: () => Args;
}

async function choose(title: string, choices: Choice[]): Args {
  return (await vscode.window.showQuickPick(choices, { title }))?.args();
}

function prompt(title: string, value = "", placeHolder = ""): Thenable<string | undefined> {
  return vscode.window.showInputBox({ title, value, placeHolder, ignoreFocusOut: true });
}

async function savePath(title: string, name: string, filters: Filters) {
  return (await askSavePath(name, { title, filters }))?.fsPath;
}

/** `opstep diff`: what is compared with what. */
export function diff(run: RunOptions): Args {
  const with_ =
    (...more: string[]) =>
    async () => {
      const options = await run();
      return options && ["diff", ...options, ...more];
    };
  return choose("Compare", [
    { label: "async with debug mode", args: with_("--a", "async", "--b", "debug") },
    {
      label: "streams on time with randomly delayed streams",
      description: "--chaos",
      args: with_("--chaos", "7"),
    },
    {
      label: "the CPU with a GPU",
      args: with_("--a", "device=cpu", "--b", "device=cuda", "--rtol", "1e-5"),
    },
    {
      label: "with another file…",
      args: async () => {
        const options = await run();
        const other = options && (await pickFile("The other program", PROGRAMS));
        return other ? ["diff", options[0] as string, other, ...options.slice(1)] : undefined;
      },
    },
    { label: "two runs of a workspace…", args: compareRuns },
  ]);
}

async function compareRuns(): Args {
  const file = await pickFile("Workspace", WORKSPACES);
  const runs = file && (await prompt("Two runs (ids, keys, or last)", "1 last"));
  return runs ? ["diff", "--workspace", file, ...runs.split(/\s+/)] : undefined;
}

/** `opstep bench`, with a picture of the roofline or without. */
export function bench(run: RunOptions): Args {
  return choose("Time each op", [
    {
      label: "Table only",
      args: async () => {
        const options = await run();
        return options && ["bench", ...withoutMode(options)];
      },
    },
    {
      label: "With a roofline plot…",
      args: async () => {
        const options = await run();
        const file =
          options &&
          (await savePath("Roofline", "roofline.png", { pictures: ["png", "svg", "pdf"] }));
        return file ? ["bench", ...withoutMode(options), "--roofline", file] : undefined;
      },
    },
  ]);
}

/** `opstep bench` has no mode: it times the ops of one stream. */
function withoutMode(options: string[]): string[] {
  const at = options.indexOf("--mode");
  return at < 0 ? options : options.toSpliced(at, 2);
}

/** `main of entropy.opg`: what a run is of. */
function ofGraph(options: string[]): string {
  const at = options.indexOf("--graph");
  const graph = at < 0 ? "" : `${options[at + 1]} of `;
  return `${graph}${path.basename(options[0] ?? "")}`;
}

/** Options of a run of several steps; undefined if the user cancels. */
async function severalSteps(run: RunOptions): Args {
  const options = await run();
  const steps =
    options &&
    (await vscode.window.showInputBox({
      title: `${ofGraph(options)}: how many steps?`,
      value: "20",
      prompt:
        "The graph runs this many times; each step continues with the params and states of the previous one.",
      ignoreFocusOut: true,
      validateInput: (text) =>
        /^[1-9]\d{0,8}$/.test(text.trim()) ? undefined : "a whole number, at least 1",
    }));
  return options && steps ? [...options, "--steps", steps.trim()] : undefined;
}

/** `opstep run --trace`: a timeline beside the program. */
export async function runTraced(run: RunOptions): Args {
  const options = await severalSteps(run);
  const file = options && (await timelineFile());
  return file ? ["run", ...options, "--trace", file] : undefined;
}

export function timelineFile(): Promise<string | undefined> {
  return savePath("Save the timeline as", "run.pftrace", TRACES);
}

/** `opstep run --workspace`. */
export async function runRecorded(run: RunOptions): Args {
  const options = await severalSteps(run);
  const file = options && (await workspaceFile(ofGraph(options)));
  return file ? ["run", ...options, "--workspace", file] : undefined;
}

/** That of the settings, or one that is asked for. */
export async function workspaceFile(what: string): Promise<string | undefined> {
  const configured = vscode.workspace.getConfiguration("opstep").get<string>("workspace", "");
  return configured || workspaceToRecordIn(what);
}

/** A workspace of the folder, which the run is added to, or a new one. */
async function workspaceToRecordIn(what: string): Promise<string | undefined> {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  const found = await vscode.workspace.findFiles("**/*.db", "**/{.venv,venv,node_modules}/**", 50);
  const files = found.map((uri) => vscode.workspace.asRelativePath(uri, false)).sort();
  const items = [
    ...files.map((file) => ({
      label: `$(database) Add to ${file}`,
      description: "its other runs stay as they are",
      file,
    })),
    { label: "$(new-file) A new workspace…", file: undefined },
  ];
  const title = `Record ${what} in`;
  // The question before gives the focus back to where it was, to a view's page after a while.
  const options = { title, ignoreFocusOut: true };
  const picked = files.length > 0 ? await vscode.window.showQuickPick(items, options) : items[0];
  if (!picked || picked.file) {
    return picked?.file;
  }
  const free = (k: number) => (k === 1 ? "runs.db" : `runs${k}.db`);
  const number = [1, 2, 3, 4, 5, 6, 7, 8, 9].find((k) => !files.includes(free(k))) ?? 10;
  const name = await vscode.window.showInputBox({
    title,
    value: free(number),
    prompt: "A file for this run and later ones. A run is added to a file that is there already.",
    ignoreFocusOut: true,
    validateInput: (text) =>
      /\.(db|sqlite)$/.test(text.trim()) ? undefined : "a name that ends in .db, such as runs.db",
  });
  return name && folder ? path.resolve(folder.fsPath, name.trim()) : name?.trim();
}

/** `opstep ops`: the list, or one op. */
export async function ops(): Args {
  const editor = vscode.window.activeTextEditor;
  const word = editor?.document.getText(
    editor.document.getWordRangeAtPosition(editor.selection.active),
  );
  const name = await prompt("Which op? (empty for all)", word ?? "", "conv2d");
  return name === undefined ? undefined : ["ops", ...(name.trim() ? [name.trim()] : [])];
}

/** `opstep ws`: the workspace, then the verb. */
export async function workspace(): Args {
  const file = await pickFile("Workspace", WORKSPACES);
  if (!file) {
    return undefined;
  }
  const ws = (...words: string[]) => ["ws", file, ...words];
  const withText = (title: string, value: string, args: (text: string) => string[]) => async () => {
    const text = await prompt(title, value);
    return text === undefined ? undefined : args(text.trim());
  };
  const split = (text: string) => text.split(/\s+/).filter(Boolean);
  return choose(path.basename(file), [
    { label: "summary", description: "contents and size", args: async () => ws() },
    { label: "list", description: "tensors and runs", args: async () => ws("list") },
    {
      label: "sql",
      description: "run a query",
      args: withText("SQL", "select * from first_bad", (text) => ws("sql", text)),
    },
    {
      label: "plot",
      description: "a value over steps",
      args: async () => {
        const what = await prompt("What to plot", "stats.absmax where op=conv2d");
        const picture =
          what && (await savePath("Picture", "plot.png", { pictures: ["png", "svg", "pdf"] }));
        return picture ? ws("plot", what, "-o", picture) : undefined;
      },
    },
    {
      label: "compare",
      description: "where two runs diverge",
      args: withText("Two runs (ids, keys, or last)", "1 last", (text) =>
        ws("compare", ...split(text)),
      ),
    },
    {
      label: "rerun",
      description: "repeat a run using only the workspace",
      args: withText("Which run?", "last", (text) => ws("rerun", text)),
    },
    {
      label: "load",
      description: "show a tensor",
      args: withText("Tensor: NAME, NAME@RUN or NAME@RUN:STEP", "", (text) => ws("load", text)),
    },
    {
      label: "export",
      description: "write a table to a file",
      args: async () => {
        const table = await prompt("Table or view", "slowest_ops");
        const file =
          table && (await savePath("Table", `${table}.csv`, { tables: ["csv", "json", "npz"] }));
        return file ? ws("export", table, "-o", file) : undefined;
      },
    },
    {
      label: "prune",
      description: "remove runs (with confirmation)",
      args: async () => {
        const runs = await prompt("Runs to remove (ids or keys)", "");
        const sure =
          runs?.trim() &&
          (await vscode.window.showWarningMessage(
            `Remove ${runs.trim()} from ${path.basename(file)}?`,
            { modal: true, detail: "This cannot be undone." },
            "Remove",
          ));
        return sure
          ? ws("prune", ...split(runs ?? "").flatMap((run) => ["--run", run]))
          : undefined;
      },
    },
    { label: "open", description: "in the browser (Datasette)", args: async () => ws("open") },
  ]);
}

/** `opstep trace`: the timeline, then what of it. */
export async function trace(): Args {
  const file = await pickFile("Timeline", TRACES);
  return file
    ? choose(path.basename(file), [
        {
          label: "summary",
          description: "where the time went",
          args: async () => ["trace", file, "summary"],
        },
        {
          label: "query",
          description: "PerfettoSQL",
          args: async () => {
            const text = await prompt(
              "PerfettoSQL",
              "select name, dur from slice order by dur desc limit 20",
            );
            return text ? ["trace", file, "query", text] : undefined;
          },
        },
        {
          label: "open",
          description: "in the browser (Perfetto)",
          args: async () => ["trace", file],
        },
      ])
    : undefined;
}
