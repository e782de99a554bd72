/** Graphs to begin with: written where the user likes, and opened. */

import * as vscode from "vscode";
import branches from "../../../examples/branches.opg";
import entropy from "../../../examples/entropy.opg";
import loop from "../../../examples/while.opg";
import { askSavePath } from "../dialogs";

const EXAMPLES = [
  { label: "entropy.opg", description: "a NaN to hunt: 0 * log(0)", text: entropy },
  { label: "while.opg", description: "a loop to step through", text: loop },
  { label: "branches.opg", description: "several streams", text: branches },
];

/** Asks which, and where to. */
export async function openExample(): Promise<void> {
  const picked = await vscode.window.showQuickPick(EXAMPLES, { title: "Open an example" });
  if (!picked) {
    return;
  }
  const filters = { graphs: ["opg"] };
  const uri = await askSavePath(picked.label, { title: "Save the example as", filters });
  if (uri) {
    await vscode.workspace.fs.writeFile(uri, new TextEncoder().encode(picked.text));
    await vscode.window.showTextDocument(uri);
  }
}
