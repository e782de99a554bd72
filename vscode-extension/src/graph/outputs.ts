/** A plan of the graph that is shown, and pictures of it. */

import * as vscode from "vscode";
import type { GraphData } from "../../shared/graph/messages";
import { programOf, type Sizes } from "../debug/prompts";
import { askSavePath, type Filters } from "../dialogs";
import type { Services } from "../services";

/** The text of a plan for sizes that are asked for. */
export async function planned(
  services: Services,
  sizes: Sizes,
  data: GraphData,
): Promise<string | undefined> {
  const uri = vscode.Uri.parse(data.uri);
  const program = await programOf(uri.fsPath);
  const head = program.graphs.find((graph) => graph.name === data.graph);
  // The plan, and with it the streams, depends on the sizes of the inputs.
  const chosen = head && (await sizes.of(uri.fsPath, head, {}));
  if (chosen === undefined) {
    return undefined;
  }
  const args = ["plan", uri.fsPath, "--graph", data.graph, "--mode", "async"];
  for (const [name, size] of Object.entries(chosen.sizes)) {
    args.push("--symbol", `${name}=${size}`);
  }
  const { code, stdout, stderr } = await services.opstep(args);
  if (code !== 0) {
    throw new Error(`Cannot colour by stream without a plan: ${stderr.trim() || stdout.trim()}`);
  }
  return stdout;
}

export async function saveImage(
  shown: GraphData | undefined,
  format: "svg" | "png",
  data: string,
): Promise<void> {
  const { uri = "", graph = "graph" } = shown ?? {};
  const folder = vscode.Uri.joinPath(vscode.Uri.parse(uri), "..");
  const filters: Filters =
    format === "svg" ? { "SVG picture": ["svg"] } : { "PNG picture": ["png"] };
  const file = await askSavePath(`${graph}.${format}`, { folder, filters });
  if (file !== undefined) {
    const content = format === "svg" ? Buffer.from(data) : Buffer.from(data, "base64");
    await vscode.workspace.fs.writeFile(file, content);
    vscode.window.setStatusBarMessage(`Saved ${file.fsPath}`, 5000);
  }
}
