/** Arguments that a run still needs: the user is asked once, and the answers are remembered. */

import { readdir, readFile } from "node:fs/promises";
import path from "node:path";
import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import { arraysIn } from "./archive";
import {
  type DataFile,
  exampleOf,
  findInputs,
  findParams,
  parseSizes,
  type RunArguments,
  unboundSymbols,
} from "./arguments";
import { defaultGraph, type GraphHead, graphAt, type Program, readProgram } from "./graphs";

const MOST_FILES = 2000;

/** The program of a file as it would run: from the editor where it is open. */
export async function programOf(file: string): Promise<Program> {
  const open = vscode.workspace.textDocuments.find(
    (d) => d.uri.scheme === "file" && d.uri.fsPath === file,
  );
  return readProgram(open ? open.getText() : await readFile(file, "utf8"));
}

/** Files beside a program that could hold inputs or weights. */
async function findDataFiles(file: string): Promise<DataFile[]> {
  const folder = path.dirname(file);
  const names = (await readdir(folder)).filter((n) => /\.(npy|npz|safetensors)$/.test(n));
  return Promise.all(
    names
      .sort()
      .slice(0, MOST_FILES)
      .map(async (name) => ({
        name,
        keys: name.endsWith(".npz")
          ? await arraysIn(path.join(folder, name)).catch(() => [])
          : undefined,
      })),
  );
}

/** Inputs and weights from files beside the program; their paths are absolute. */
export async function findArguments(
  file: string,
  program: Program,
  graph: GraphHead,
): Promise<RunArguments> {
  const files = await findDataFiles(file);
  const stem = path.basename(file, path.extname(file));
  const inputs = findInputs(graph, stem, files);
  const params = findParams(program, stem, files);
  const folder = path.dirname(file);
  const absolute = (source: unknown) =>
    typeof source === "string" && /\.np[yz](:|$)/.test(source) ? path.join(folder, source) : source;
  return {
    ...(inputs && {
      inputs:
        typeof inputs === "string"
          ? inputs
          : Object.fromEntries(Object.entries(inputs).map(([n, s]) => [n, absolute(s)])),
    }),
    ...(params && { params: path.join(folder, params) }),
  };
}

/** By file: the graph that ran last, until somebody moves the cursor. A stop moves it, too, into any graph. */
const last = new Map<string, string>();

/** Keeps what ran last while only the debugger has moved the cursor. */
export function followCursor(): vscode.Disposable {
  return vscode.window.onDidChangeTextEditorSelection((event) => {
    const { Keyboard, Mouse } = vscode.TextEditorSelectionChangeKind;
    if (event.kind === Keyboard || event.kind === Mouse) {
      last.delete(event.textEditor.document.uri.fsPath);
    }
  });
}

/** The graph that ran last, the one at the cursor, the only one, `main`, or the one that is picked; undefined where none is. */
export async function chooseGraph(
  file: string,
  program: Program,
  always = false,
): Promise<GraphHead | undefined> {
  const isOf = (editor?: vscode.TextEditor) => editor?.document.uri.fsPath === file;
  const { activeTextEditor: active, visibleTextEditors: visible } = vscode.window;
  const editor = isOf(active) ? active : visible.find(isOf);
  const at = editor && graphAt(program, editor.selection.active.line);
  const again = program.graphs.find((graph) => graph.name === last.get(file));
  const graph = always ? undefined : (again ?? at ?? defaultGraph(program));
  if (graph || program.graphs.length === 0) {
    if (graph) {
      last.set(file, graph.name);
    }
    return graph;
  }
  const picked = await vscode.window.showQuickPick(
    program.graphs.map((graph) => ({
      label: graph.name,
      description: graph.inputs
        .map((i) => `${i.name}: ${i.dtype}[${i.dims.join(", ")}]`)
        .join(", "),
      picked: graph === at,
      graph,
    })),
    { title: `Which graph of ${path.basename(file)}?` },
  );
  return picked?.graph;
}

/** By file and graph, sizes that were typed and failed: to begin with when they are asked for again. */
const failed = new Map<string, Record<string, number>>();

/** Sizes of symbolic dims, by file and graph, as they were given last. */
export class Sizes {
  constructor(private readonly memory: vscode.Memento) {}

  private static key(file: string, graph: string): string {
    return `opstep.sizes:${file}:${graph}`;
  }

  /** Drops sizes that a run did not take; gives whether there were any. */
  async forget(file: string, graph: string): Promise<boolean> {
    const key = Sizes.key(file, graph);
    const before = this.memory.get<Record<string, number>>(key);
    if (before) {
      failed.set(key, before);
      await this.memory.update(key, undefined);
    }
    return before !== undefined;
  }

  /**
   * Sizes for what is open. They are asked for once; `again` asks in any case. Undefined if the user
   * cancels.
   */
  async of(
    file: string,
    graph: GraphHead,
    args: RunArguments,
    again = false,
  ): Promise<{ sizes: Record<string, number>; remembered: boolean } | undefined> {
    const symbols = unboundSymbols(graph, args);
    if (symbols.length === 0) {
      return { sizes: {}, remembered: false };
    }
    const key = Sizes.key(file, graph.name);
    const before = this.memory.get<Record<string, number>>(key, {});
    const complete = symbols.every((name) => name in before);
    if (complete && !again) {
      return {
        sizes: Object.fromEntries(symbols.map((name) => [name, before[name] as number])),
        remembered: true,
      };
    }
    const proposed = { ...failed.get(key), ...before };
    const text = await vscode.window.showInputBox({
      title: `${graph.name}: sizes of ${symbols.join(", ")}`,
      prompt: `How large the dimensions are that the graph only names${exampleOf(graph, symbols)}. Remembered; “opstep: Change Sizes…” changes them.`,
      // Sizes that differ show what is transposed.
      value: symbols.map((name, k) => `${name}=${proposed[name] ?? 4 + k}`).join(", "),
      ignoreFocusOut: true,
      validateInput: (value) => {
        try {
          parseSizes(value, symbols);
          return undefined;
        } catch (error) {
          return messageOf(error);
        }
      },
    });
    if (text === undefined) {
      return undefined;
    }
    const sizes = parseSizes(text, symbols);
    await this.memory.update(key, { ...before, ...sizes });
    return { sizes, remembered: false };
  }
}
