/** How the tree shows its nodes: icons, words, and what a click does. */

import path from "node:path";
import * as vscode from "vscode";
import { counted, grouped } from "../../shared/format";
import {
  findingLabel,
  type Icon,
  metricDescription,
  runDescription,
  runIcon,
  runTooltip,
  slowDescription,
  slowLabel,
  statusDescription,
  stepDescription,
  tensorDescription,
} from "./format";
import { idOf, type Node, type Part } from "./nodes";

const PARTS: Record<Part, [string, string]> = {
  summary: ["Summary", "info"],
  findings: ["Findings", "warning"],
  steps: ["Steps", "list-ordered"],
  tensors: ["Tensors", "symbol-array"],
  slowest: ["Slowest ops", "watch"],
  metrics: ["Metrics", "graph-line"],
};
const { None, Collapsed, Expanded } = vscode.TreeItemCollapsibleState;

export function itemOf(node: Node): vscode.TreeItem {
  const item = shape(node);
  item.id = idOf(node);
  item.contextValue ??= node.kind;
  const label = [item.label, item.description].filter((w) => typeof w === "string");
  item.accessibilityInformation = { label: label.join(", ") };
  return item;
}

function shape(node: Node): vscode.TreeItem {
  switch (node.kind) {
    case "file":
      return file(node);
    case "run":
      return run(node);
    case "part": {
      const [label, icon] = PARTS[node.part];
      const live = node.part === "metrics" && node.run.underWay;
      const item = createItem(label, { name: icon }, live ? Expanded : Collapsed);
      item.description = node.count === undefined ? "" : grouped(node.count);
      item.contextValue = `part.${node.part}`;
      // The only one need not be looked for below.
      const only = node.part === "findings" && node.count === 1;
      return only ? withCommand(item, "opstep.workspace.report", node) : item;
    }
    case "program":
      return withCommand(
        createItem("Program (as run)", { name: "file-code" }),
        "opstep.workspace.program",
        node,
      );
    case "fact": {
      const item = createItem(node.name, undefined);
      item.description = node.value;
      item.tooltip = node.value;
      return item;
    }
    case "finding": {
      const item = createItem(findingLabel(node.finding), {
        name: "bug",
        colour: "list.errorForeground",
      });
      item.description = `step ${node.finding.step} · ${node.finding.message}`;
      item.tooltip = node.finding.message;
      return withCommand(item, "opstep.workspace.report", node);
    }
    case "steps":
      return createItem(
        `${grouped(node.first)} – ${grouped(node.last)}`,
        { name: "list-ordered" },
        Collapsed,
      );
    case "step": {
      const icon = node.step.odd
        ? { name: "warning", colour: "list.warningForeground" }
        : { name: "circle-small" };
      const item = createItem(
        node.step.step < 0 ? "before the first" : `step ${node.step.step}`,
        icon,
      );
      item.description = stepDescription(node.step);
      return withCommand(item, "opstep.workspace.step", node);
    }
    case "metric": {
      const { name, step } = node.metric;
      const item = createItem(name, { name: "graph-line" });
      item.description = metricDescription(node.metric);
      item.tooltip = `${item.description} in step ${grouped(step)}: click to plot`;
      return withCommand(item, "opstep.workspace.plotMetric", node);
    }
    case "saved":
      return createItem("Saved tensors", { name: "save" }, Collapsed);
    case "tensor":
      return tensor(node);
    case "version": {
      const item = createItem(node.tensor.kind, { name: "symbol-array" });
      item.description = tensorDescription(node.tensor);
      item.tooltip = node.tensor.reference;
      return withCommand(item, "opstep.workspace.tensor", node);
    }
    case "slow": {
      const item = createItem(slowLabel(node.op), { name: "symbol-event" });
      item.description = slowDescription(node.op, node.total);
      item.tooltip = [
        node.op.statement,
        node.op.site,
        `${node.op.file ?? ""}:${node.op.line ?? ""}`,
      ]
        .filter(Boolean)
        .join("\n");
      return withCommand(item, "opstep.workspace.goto", node);
    }
    case "more":
      return withCommand(
        createItem(`Show more (${counted(node.left, node.what)} left)`, { name: "ellipsis" }),
        "opstep.workspace.more",
        node,
      );
    default: {
      // Which file it is stands above.
      const text = node.message.startsWith(node.path)
        ? node.message.slice(node.path.length)
        : node.message;
      const item = createItem(text.replace(/^:? /, ""), { name: "info" });
      item.description = node.hint;
      item.tooltip = [node.message, node.hint].filter(Boolean).join("\n");
      return node.older ? withCommand(item, "opstep.workspace.update", node) : item;
    }
  }
}

function file(node: Extract<Node, { kind: "file" }>): vscode.TreeItem {
  const { status } = node;
  const good = status.kind === "workspace";
  const icon = good ? { name: "database" } : { name: "warning", colour: "list.warningForeground" };
  const item = createItem(path.basename(node.path), icon, good ? Expanded : Collapsed);
  const folder = vscode.workspace.asRelativePath(path.dirname(node.path));
  const here = vscode.workspace.workspaceFolders?.some(
    (f) => f.uri.fsPath === path.dirname(node.path),
  );
  item.description = statusDescription(status, here ? "" : folder);
  item.tooltip = [node.path, status.message, status.hint].filter(Boolean).join("\n");
  item.contextValue = `file.${status.kind}`;
  item.resourceUri = undefined;
  return item;
}

function run(node: Extract<Node, { kind: "run" }>): vscode.TreeItem {
  // A run that is under way shows its curves.
  const state = node.run.underWay ? Expanded : Collapsed;
  const item = createItem(node.run.graph, runIcon(node.run), state);
  item.description = runDescription(node.run, Date.now());
  item.tooltip = new vscode.MarkdownString(runTooltip(node.run));
  const traits = [node.run.underWay ? "live" : "ended", node.run.trace ? "traced" : ""];
  item.contextValue = ["run", ...traits].filter(Boolean).join(".");
  return item;
}

function tensor(node: Extract<Node, { kind: "tensor" }>): vscode.TreeItem {
  const { versions } = node;
  const last = versions[versions.length - 1];
  const item = createItem(
    last?.name ?? "",
    { name: "symbol-array" },
    versions.length > 1 ? Collapsed : None,
  );
  if (last) {
    item.description =
      versions.length > 1
        ? `${last.type} · ${last.kind} · ${counted(versions.length, "version")}`
        : `${last.kind} · ${tensorDescription(last)}`;
    item.tooltip = last.reference;
  }
  if (versions.length > 1) {
    return item;
  }
  return withCommand(item, "opstep.workspace.tensor", node);
}

function createItem(label: string, icon: Icon | undefined, state = None): vscode.TreeItem {
  const item = new vscode.TreeItem(label, state);
  if (icon) {
    const colour = icon.colour ? new vscode.ThemeColor(icon.colour) : undefined;
    item.iconPath = new vscode.ThemeIcon(icon.name, colour);
  }
  return item;
}

function withCommand(item: vscode.TreeItem, command: string, node: Node): vscode.TreeItem {
  item.command = { command, title: "Open", arguments: [node] };
  return item;
}
