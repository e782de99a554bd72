/** What the tree is made of: workspaces, their runs, and what is known of each. */

import type { Finding, Metric, Run, SlowOp, Step, StoredTensor, WorkspaceStatus } from "./requests";

export type Part = "summary" | "findings" | "steps" | "tensors" | "slowest" | "metrics";

interface OfRun {
  path: string;
  run: Run;
}

export type Node =
  | { kind: "file"; path: string; status: WorkspaceStatus }
  | ({ kind: "run" } & OfRun)
  | ({ kind: "part"; part: Part; count: number | undefined } & OfRun)
  | ({ kind: "program" } & OfRun)
  | ({ kind: "fact"; name: string; value: string } & OfRun)
  | ({ kind: "finding"; finding: Finding } & OfRun)
  | ({ kind: "steps"; first: number; last: number } & OfRun)
  | ({ kind: "step"; step: Step } & OfRun)
  | ({ kind: "metric"; metric: Metric } & OfRun)
  | { kind: "saved"; path: string; tensors: StoredTensor[][] }
  | { kind: "tensor"; path: string; run?: Run; versions: StoredTensor[] }
  | { kind: "version"; path: string; run?: Run; tensor: StoredTensor }
  | ({ kind: "slow"; op: SlowOp; total: number } & OfRun)
  | { kind: "more"; path: string; run?: Run; what: string; left: number }
  | { kind: "problem"; path: string; message: string; hint: string; older?: boolean };

/** A name that stays the same while what it names does: the tree keeps what is open by it. */
export function idOf(node: Node): string {
  const head = "run" in node && node.run ? `${node.path}#${node.run.key}` : node.path;
  switch (node.kind) {
    case "file":
      return node.path;
    case "part":
      return `${head}/${node.part}`;
    case "fact":
      return `${head}/summary/${node.name}`;
    case "finding":
      return `${head}/findings/${node.finding.id}`;
    case "steps":
      return `${head}/steps/${node.first}-${node.last}`;
    case "step":
      return `${head}/step/${node.step.step}`;
    case "metric":
      return `${head}/metric/${node.metric.name}`;
    case "tensor":
      return `${head}/tensor/${node.versions[0]?.name}`;
    case "version":
      return `${head}/version/${node.tensor.id}`;
    case "slow":
      return `${head}/slow/${node.op.op}`;
    case "more":
      return `${head}/more/${node.what}`;
    default:
      return `${head}/${node.kind}`;
  }
}
