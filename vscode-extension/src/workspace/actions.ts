/** Actions on workspaces and runs: the verbs of `opstep ws`, from menus. */

import path from "node:path";
import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import { counted } from "../../shared/format";
import { firstPlot } from "../../shared/query/plotText";
import { askSavePath, browse, type Filters, WORKSPACES } from "../dialogs";
import { showRecorded } from "../nan/found";
import type { Services } from "../services";
import { diffProgram, openDocument } from "./documents";
import type { Files } from "./files";
import { runDescription } from "./format";
import { goTo } from "./locations";
import type { Node } from "./nodes";
import { questionAbout, questionAboutStep } from "./questions";
import type { Run, RunDetail, StoredTensor } from "./requests";
import type { Tree } from "./tree";

type RunNode = Extract<Node, { run: Run }>;

/** Opens the query panel. */
type OpenQuery = (request: {
  path?: string;
  mode?: "sql" | "plot";
  text?: string;
}) => Promise<void>;
/** Opens a kept tensor. */
type OpenTensor = (path: string, tensor: StoredTensor) => Promise<void>;

/** What needs nothing to be chosen. */
const ALONE = new Set(["refresh", "open", "query"]);

export class Actions {
  constructor(
    private readonly services: Services,
    private readonly files: Files,
    private readonly tree: Tree,
    private readonly openQuery: OpenQuery,
    private readonly openTensor: OpenTensor,
    private readonly selected: () => readonly Node[],
  ) {}

  register(): vscode.Disposable {
    const all: Record<string, (node: Node, nodes?: Node[]) => unknown> = {
      refresh: () => this.files.find(),
      open: () => this.open(),
      openFile: (uri) => uri instanceof vscode.Uri && this.files.open(uri.fsPath),
      close: (node) => this.files.close(node.path),
      more: (node) => this.tree.more(node),
      update: (node) => this.update(node),
      query: (node) => this.query(node),
      goto: (node) => this.goTo(node),
      step: (node) => this.step(node),
      plotMetric: (node) => this.plotMetric(node),
      plotRun: (node) => this.plotRun(node),
      program: (node) => this.program(node),
      diffProgram: (node) => withRun(node, (n) => diffProgram(this.services, n.path, n.run.key)),
      report: (node) => this.report(node),
      tensor: (node) => this.tensor(node),
      exportTensor: (node) => this.exportTensor(node),
      compare: (node, nodes) => this.compare(node, nodes),
      plotCompared: (node, nodes) => this.plotCompared(node, nodes),
      rerun: (node) => this.rerun(node, []),
      rerunRecorded: (node) => this.rerun(node, ["--record"]),
      export: (node) => this.export(node),
      prune: (node, nodes) => this.prune(node, nodes),
      copyKey: (node) => withRun(node, (n) => vscode.env.clipboard.writeText(n.run.key)),
      copyReference: (node) => this.copyReference(node),
      timeline: (node) => this.timeline(node),
    };
    return vscode.Disposable.from(
      ...Object.entries(all).map(([name, act]) =>
        vscode.commands.registerCommand(
          `opstep.workspace.${name}`,
          async (node?: Node, several?: Node[]) => {
            // A key says nothing of what it is about: what is selected is meant.
            const nodes = several ?? (node ? undefined : [...this.selected()]);
            if (!node && !nodes?.length && !ALONE.has(name)) {
              return;
            }
            try {
              await act(node ?? (nodes?.[0] as Node), nodes);
            } catch (error) {
              const text = messageOf(error);
              void vscode.window.showErrorMessage(text);
            }
          },
        ),
      ),
    );
  }

  private async open(): Promise<void> {
    const uri = await browse("Open a Workspace", WORKSPACES);
    if (uri && (await this.files.open(uri.fsPath))) {
      await vscode.commands.executeCommand("opstep.workspace.focus");
    }
  }

  /** An older file is changed by the command line alone, and after a question. */
  private async update(node: Node): Promise<void> {
    const name = path.basename(node.path);
    const yes = "Upgrade";
    const detail = `${name} was written by an older opstep. A backup of the current file is kept beside it.`;
    const chosen = await vscode.window.showWarningMessage(
      `Upgrade ${name}?`,
      { modal: true, detail },
      yes,
    );
    if (chosen === yes) {
      await this.run(["ws", node.path]);
      await this.files.find();
    }
  }

  /** The query panel, with a question about what was chosen. */
  private async query(node: Node | undefined): Promise<void> {
    if (!node || node.kind === "file" || !("run" in node) || !node.run) {
      await this.openQuery(node ? { path: node.path } : {});
      return;
    }
    const text = questionAbout(node.kind === "part" ? node.part : undefined, node.run.id);
    await this.openQuery({ path: node.path, mode: "sql", text });
  }

  private async goTo(node: Node): Promise<void> {
    if (node.kind === "finding") {
      const { place, file, line } = node.finding;
      await goTo(this.services, node.path, { file: place ?? file, line, run: node.run.key });
    } else if (node.kind === "slow") {
      const { place, file, line } = node.op;
      await goTo(this.services, node.path, { file: place ?? file, line, run: node.run.key });
    }
  }

  /** All statistics of a step. */
  private async step(node: Node): Promise<void> {
    if (node.kind === "step") {
      const text = questionAboutStep(node.run.id, node.step.step);
      await this.openQuery({ path: node.path, mode: "sql", text });
    }
  }

  private async plotMetric(node: Node): Promise<void> {
    if (node.kind === "metric") {
      await this.openQuery({
        path: node.path,
        mode: "plot",
        text: `metrics.${node.metric.name} where run=${node.run.key}`,
      });
    }
  }

  /** What a run is known by: its loss, live while it is under way. */
  private plotRun(node: Node): Promise<void> | undefined {
    return withRun(node, async ({ path: file, run: { key } }) => {
      const params = { path: file, run: key };
      const detail = await this.services.request<RunDetail>("opstep/workspace/run", params);
      const figure = firstPlot(detail.metrics.map(({ name }) => name));
      await this.openQuery({ path: file, mode: "plot", text: `${figure} where run=${key}` });
    });
  }

  private program(node: Node): Promise<void> | undefined {
    return withRun(node, (n) => {
      const name = n.run.file?.split(/[\\/]/).at(-1) ?? "program.opg";
      return openDocument({ what: "program", path: n.path, run: n.run.key }, name);
    });
  }

  /** The NaN report, beside the line at fault. */
  private async report(node: Node): Promise<void> {
    if (node.kind === "part" && node.part === "findings") {
      const [only] = await this.tree.getChildren(node);
      await (only && this.report(only));
    } else if (node.kind === "finding") {
      await this.goTo(node);
      showRecorded({ finding: { ...node.finding, run: node.run.key }, workspace: node.path });
    }
  }

  private async tensor(node: Node): Promise<void> {
    const tensor = tensorOf(node);
    if (tensor) {
      await this.openTensor(node.path, tensor);
    }
  }

  private async exportTensor(node: Node): Promise<void> {
    const tensor = tensorOf(node);
    if (!tensor) {
      return;
    }
    const file = await savePath(node.path, `${tensor.name}.npy`, {
      "NumPy array": ["npy"],
      NumPy: ["npz"],
      safetensors: ["safetensors"],
    });
    if (file) {
      await this.run(
        ["ws", node.path, "load", "-o", file, "--", tensor.reference],
        `Wrote ${path.basename(file)}`,
      );
    }
  }

  private async copyReference(node: Node): Promise<void> {
    const tensor = tensorOf(node);
    if (tensor) {
      await vscode.env.clipboard.writeText(tensor.reference);
    }
  }

  /** Two runs that are marked, or the one that was chosen and another. */
  private async pair(node: Node, nodes: Node[] | undefined): Promise<[RunNode, Run] | undefined> {
    const marked = (nodes ?? []).filter(
      (n): n is Extract<Node, { kind: "run" }> => n.kind === "run",
    );
    const [a, b] = marked;
    if (a && b && marked.length === 2 && a.path === b.path) {
      return a.run.id < b.run.id ? [a, b.run] : [b, a.run];
    }
    if (!("run" in node) || !node.run) {
      return undefined;
    }
    const mine = node as RunNode;
    const { runs } = await this.services.request<{ runs: Run[] }>("opstep/workspace/runs", {
      path: node.path,
      limit: 200,
    });
    const choices = runs
      .filter((run) => run.id !== mine.run.id)
      .map((run) => ({ label: run.graph, description: runDescription(run, Date.now()), run }));
    if (!choices.length) {
      void vscode.window.showInformationMessage("This workspace has no other run to compare with.");
      return undefined;
    }
    const chosen = await vscode.window.showQuickPick(choices, {
      title: `Compare ${mine.run.key} with`,
      matchOnDescription: true,
    });
    return chosen && [mine, chosen.run];
  }

  private async compare(node: Node, nodes?: Node[]): Promise<void> {
    const pair = await this.pair(node, nodes);
    if (pair) {
      const [{ path: file, run }, other] = pair;
      const shown = { what: "compare", path: file, run: run.key, other: other.key } as const;
      await openDocument(shown, `${run.key} and ${other.key}.txt`);
    }
  }

  private async plotCompared(node: Node, nodes?: Node[]): Promise<void> {
    const pair = await this.pair(node, nodes);
    if (!pair) {
      return;
    }
    const [{ path: file, run }, other] = pair;
    const { names } = await this.services.request<{ names: { metric: string[] } }>(
      "opstep/workspace/schema",
      { path: file },
    );
    const metric = names.metric.find((name) => name !== "seconds") ?? "seconds";
    await this.openQuery({
      path: file,
      mode: "plot",
      text: `metrics.${metric} where run=${run.key}|${other.key}`,
    });
  }

  private async rerun(node: Node, more: string[]): Promise<void> {
    await withRun(node, async (n) => {
      const title = `rerun ${n.run.key}`;
      await this.services.show(["ws", n.path, "rerun", ...more, "--", n.run.key], { title });
      this.files.touch(n.path);
    });
  }

  private async export(node: Node): Promise<void> {
    const run = "run" in node ? node.run : undefined;
    const tables = await this.services.request<{
      tables: { name: string; what: string; columns: { name: string }[] }[];
    }>("opstep/workspace/schema", { path: node.path });
    const choices = tables.tables
      .filter((t) => t.name !== "blobs" && (!run || t.columns.some((c) => c.name === "run")))
      .map((t) => ({ label: t.name, description: t.what }));
    const title = run ? `Export run ${run.key}` : "Export";
    const chosen = await vscode.window.showQuickPick(choices, { title, matchOnDescription: true });
    const file =
      chosen &&
      (await savePath(node.path, `${chosen.label}.csv`, {
        CSV: ["csv"],
        JSON: ["json"],
        NumPy: ["npz"],
        safetensors: ["safetensors"],
        Parquet: ["parquet"],
      }));
    if (file) {
      const of = run ? ["--run", run.key] : [];
      await this.run(
        ["ws", node.path, "export", ...of, "-o", file, "--", chosen.label],
        `Wrote ${path.basename(file)}`,
      );
    }
  }

  /** Removes runs: asks first, and says what goes. */
  private async prune(node: Node, nodes?: Node[]): Promise<void> {
    const several = nodes?.length ? nodes : [node];
    const runs = several.filter(
      (n): n is Extract<Node, { kind: "run" }> => n.kind === "run" && n.path === node.path,
    );
    const live = runs.find((n) => n.run.underWay);
    if (live) {
      void vscode.window.showWarningMessage(`Run ${live.run.key} is still running: stop it first.`);
      return;
    }
    if (!runs.length) {
      return;
    }
    const detail = runs
      .map((n) => `${n.run.graph}: ${runDescription(n.run, Date.now())}`)
      .slice(0, 12)
      .join("\n");
    const question = `Remove ${counted(runs.length, "run")} from ${path.basename(node.path)} permanently?`;
    const chosen = await vscode.window.showWarningMessage(
      question,
      { modal: true, detail },
      "Remove",
    );
    if (chosen === "Remove") {
      const named = runs.flatMap((n) => ["--run", n.run.key]);
      await this.run(
        ["ws", node.path, "prune", ...named, "--yes"],
        `Removed ${counted(runs.length, "run")}`,
      );
      this.files.touch(node.path);
    }
  }

  private async timeline(node: Node): Promise<void> {
    await withRun(node, async (n) => {
      if (n.run.trace) {
        const file = path.resolve(path.dirname(n.path), n.run.trace);
        await vscode.commands.executeCommand("opstep.openTimeline", vscode.Uri.file(file));
      }
    });
  }

  /**
   * Runs a verb quietly, with a bar, and says what it said where it failed. Names that the file has
   * stand behind `--`: they may begin as an option does.
   */
  private async run(args: string[], done?: string): Promise<void> {
    const title = `opstep ${args[0]} ${args[2] ?? ""}`;
    const result = await vscode.window.withProgress(
      { location: vscode.ProgressLocation.Notification, title, cancellable: true },
      (_, token) => this.services.opstep(args, { token }),
    );
    if (result.code !== 0) {
      throw new Error((result.stderr || result.stdout).trim() || `${title} failed`);
    }
    if (done) {
      void vscode.window.showInformationMessage(done);
    }
  }
}

function withRun<T>(node: Node, act: (node: RunNode) => T): T | undefined {
  return node && "run" in node && node.run ? act(node as RunNode) : undefined;
}

function tensorOf(node: Node): StoredTensor | undefined {
  if (node.kind === "version") {
    return node.tensor;
  }
  return node.kind === "tensor" ? node.versions.at(-1) : undefined;
}

async function savePath(
  beside: string,
  name: string,
  filters: Filters,
): Promise<string | undefined> {
  const folder =
    vscode.workspace.workspaceFolders?.[0]?.uri ?? vscode.Uri.file(path.dirname(beside));
  return (await askSavePath(name, { filters, folder }))?.fsPath;
}
