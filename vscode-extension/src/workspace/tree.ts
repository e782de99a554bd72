/** The view Runs: each level is asked for when it is opened, and no more of it than is seen. */

import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import type { Services } from "../services";
import type { Files } from "./files";
import { runFacts, statusDescription, stepSpans } from "./format";
import { itemOf } from "./items";
import { idOf, type Node } from "./nodes";
import type {
  Finding,
  Run,
  RunDetail,
  SlowOp,
  Step,
  StoredTensor,
  WorkspaceStatus,
} from "./requests";

const RUNS = 50; // in a page
const SLOWEST = 25;
const STEPS = 100;

export class Tree implements vscode.TreeDataProvider<Node>, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<Node | undefined>();
  readonly onDidChangeTreeData = this.changed.event;
  /** How many entries of a list are shown, by the id of what it belongs to. */
  private readonly shown = new Map<string, number>();
  private readonly parents = new Map<string, Node>();
  private readonly nodes = new Map<string, Node>();
  /** What the rows of a file stand for, by its path. */
  private readonly listed = new Map<string, Node[]>();
  private readonly listener: vscode.Disposable;

  constructor(
    private readonly services: Services,
    private readonly files: Files,
  ) {
    this.listener = files.onDidChange((paths) => this.refresh(paths));
  }

  dispose(): void {
    this.listener.dispose();
    this.changed.dispose();
  }

  /** Shows everything anew, or what belongs to some files. */
  refresh(paths?: string[]): void {
    const changed = paths?.map((path) => this.nodes.get(path));
    if (!changed || changed.some((node) => !node)) {
      this.changed.fire(undefined);
      return;
    }
    for (const node of changed) {
      const status = node && this.files.get(node.path);
      if (node?.kind === "file" && status) {
        void this.refreshFile(node, status);
      }
    }
  }

  /**
   * Draws the rows anew that are others now, and no more: one that is drawn anew under the mouse
   * loses the click, and all below it is asked for once more.
   */
  private async refreshFile(
    node: Extract<Node, { kind: "file" }>,
    status: WorkspaceStatus,
  ): Promise<void> {
    const shown = this.listed.get(node.path);
    const same = statusDescription(node.status, "") === statusDescription(status, "");
    node.status = status;
    const found = same && shown && (await this.inFile(node).catch(() => undefined));
    if (!found || found.map(idOf).join("\n") !== shown.map(idOf).join("\n")) {
      this.changed.fire(node);
      return;
    }
    for (const [at, old] of shown.entries()) {
      if (JSON.stringify(old) !== JSON.stringify(found[at])) {
        this.changed.fire(Object.assign(old, found[at]));
      }
    }
  }

  /** Shows another page of a list. */
  more(node: Node): void {
    const id = idOf(node);
    const parent = this.parents.get(id);
    if (node.kind === "more" && parent) {
      this.shown.set(idOf(parent), (this.shown.get(idOf(parent)) ?? RUNS) * 4);
      this.changed.fire(parent);
    }
  }

  getTreeItem(node: Node): vscode.TreeItem {
    return itemOf(node);
  }

  getParent(node: Node): Node | undefined {
    return this.parents.get(idOf(node));
  }

  async getChildren(node?: Node): Promise<Node[]> {
    let found: Node[];
    try {
      found = node ? await this.children(node) : this.roots();
    } catch (error) {
      const message = messageOf(error);
      found = node ? [{ kind: "problem", path: node.path, message, hint: "" }] : [];
    }
    if (node?.kind === "file") {
      this.listed.set(node.path, found);
    }
    for (const child of found) {
      this.nodes.set(idOf(child), child);
      if (node) {
        this.parents.set(idOf(child), node);
      }
    }
    return found;
  }

  private roots(): Node[] {
    const all = this.files.all.toSorted((a, b) => (b.last ?? "").localeCompare(a.last ?? ""));
    void vscode.commands.executeCommand("setContext", "opstep.workspaces", all.length);
    return all.map((status) => ({ kind: "file", path: status.path, status: status }));
  }

  private async children(node: Node): Promise<Node[]> {
    switch (node.kind) {
      case "file":
        return this.inFile(node);
      case "run":
        return this.inRun(node);
      case "part":
        return this.inPart(node);
      case "steps":
        return this.steps(node);
      case "saved":
        return node.tensors.map((versions) => ({ kind: "tensor", path: node.path, versions }));
      case "tensor":
        return node.versions.map((tensor) => ({
          kind: "version",
          path: node.path,
          run: node.run,
          tensor,
        }));
      default:
        return [];
    }
  }

  private request<T>(
    what: string,
    node: { path: string; run?: Run },
    more: object = {},
  ): Promise<T> {
    const run = node.run ? { run: node.run.key } : {};
    return this.services.request<T>(`opstep/workspace/${what}`, {
      path: node.path,
      ...run,
      ...more,
    });
  }

  private async inFile(node: Extract<Node, { kind: "file" }>): Promise<Node[]> {
    const { path, status } = node;
    if (status.kind !== "workspace") {
      const { message, hint, kind } = status;
      return [{ kind: "problem", path, message, hint, older: kind === "older" }];
    }
    const limit = this.shown.get(idOf(node)) ?? RUNS;
    const { count, runs } = await this.request<{ count: number; runs: Run[] }>("runs", node, {
      limit,
    });
    const found: Node[] = runs.map((run) => ({ kind: "run", path, run }));
    if (count > runs.length) {
      found.push({ kind: "more", path, what: "run", left: count - runs.length });
    }
    const saved = await this.request<{ names: { versions: StoredTensor[] }[] }>("tensors", {
      path,
    });
    if (saved.names.length) {
      found.push({ kind: "saved", path, tensors: saved.names.map((n) => n.versions) });
    }
    return found;
  }

  private async inRun(node: Extract<Node, { kind: "run" }>): Promise<Node[]> {
    const detail = await this.request<RunDetail>("run", node);
    const of = { path: node.path, run: { ...node.run, ...detail } };
    const part = (
      name: Extract<Node, { kind: "part" }>["part"],
      count: number | undefined,
    ): Node => ({
      kind: "part",
      part: name,
      count,
      ...of,
    });
    return [
      ...(detail.findings ? [part("findings", detail.findings)] : []),
      part("summary", undefined),
      { kind: "program", ...of },
      ...(detail.metrics.length ? [part("metrics", detail.metrics.length)] : []),
      part("steps", detail.steps),
      ...(detail.tensorNames ? [part("tensors", detail.tensorNames)] : []),
      part("slowest", undefined),
    ];
  }

  private async inPart(node: Extract<Node, { kind: "part" }>): Promise<Node[]> {
    const of = { path: node.path, run: node.run };
    switch (node.part) {
      case "summary":
        return runFacts(node.run).map(([name, value]) => ({ kind: "fact", name, value, ...of }));
      case "findings": {
        const { findings } = await this.request<{ findings: Finding[] }>("findings", node);
        return findings.map((finding) => ({ kind: "finding", finding, ...of }));
      }
      case "steps":
        return this.steps({
          kind: "steps",
          first: 0,
          last: Math.max(0, (node.count ?? 1) - 1),
          ...of,
        });
      case "tensors": {
        const { names } = await this.request<{ names: { versions: StoredTensor[] }[] }>(
          "tensors",
          node,
        );
        return names.map(({ versions }) => ({ kind: "tensor", versions, ...of }));
      }
      case "slowest": {
        const slowest = await this.request<{ ops: SlowOp[]; totalNs: number }>("slowest", node, {
          limit: SLOWEST,
        });
        return slowest.ops.map((op) => ({ kind: "slow", op, total: slowest.totalNs, ...of }));
      }
      default: {
        const detail = await this.request<RunDetail>("run", node);
        return detail.metrics.map((metric) => ({ kind: "metric", metric, ...of }));
      }
    }
  }

  private async steps(node: Extract<Node, { kind: "steps" }>): Promise<Node[]> {
    const of = { path: node.path, run: node.run };
    const spans = stepSpans(node.first, node.last, STEPS);
    if (spans.length) {
      return spans.map((span) => ({ kind: "steps", ...span, ...of }));
    }
    const limit = node.last - node.first + 1;
    const { steps } = await this.request<{ steps: Step[] }>("steps", node, {
      first: node.first,
      limit,
    });
    return steps.map((step) => ({ kind: "step", step, ...of }));
  }
}
