/** Models (.pt2, .onnx) that a click opens: the Graph view of the program that they are translated to. */

import { createHash } from "node:crypto";
import { chmod, mkdir, readdir, rm } from "node:fs/promises";
import path from "node:path";
import * as vscode from "vscode";
import type { Services } from "../services";
import { GraphView } from "./view";

const TYPE = "opstep.modelEditor";
const MODULE = "opstep.editors.model";

export function registerModels(services: Services): vscode.Disposable {
  return vscode.window.registerCustomEditorProvider(TYPE, new Models(services), {
    webviewOptions: { retainContextWhenHidden: true },
    supportsMultipleEditorsPerDocument: true,
  });
}

class Models implements vscode.CustomReadonlyEditorProvider {
  constructor(private readonly services: Services) {}

  openCustomDocument(uri: vscode.Uri): vscode.CustomDocument {
    return { uri, dispose: () => undefined };
  }

  resolveCustomEditor({ uri }: vscode.CustomDocument, panel: vscode.WebviewPanel): void {
    const view = new GraphView(this.services);
    panel.onDidDispose(() => view.dispose());
    view.showModel(panel, path.basename(uri.fsPath), this.translated(uri.fsPath));
  }

  /** Where the program's text is: a file that stays as long as the model does not change. */
  private async translated(file: string): Promise<string> {
    const { context } = this.services;
    const { mtime } = await vscode.workspace.fs.stat(vscode.Uri.file(file));
    const named = createHash("sha256").update(file).digest("hex").slice(0, 16);
    const folder = path.join(context.globalStorageUri.fsPath, "models", named, String(mtime));
    const target = path.join(folder, `${path.parse(file).name}.opg`);
    const uri = vscode.Uri.file(target).toString();
    if ((await namesIn(folder)).length > 0) {
      return uri;
    }
    for (const before of await namesIn(path.dirname(folder))) {
      await rm(path.join(folder, "..", before), { recursive: true, force: true });
    }
    await mkdir(path.dirname(folder), { recursive: true });
    const options = { module: MODULE, cwd: path.dirname(file) };
    const { code, stderr } = await this.services.opstep([file, target], options);
    if (code !== 0) {
      throw new Error(stderr.trim() || `${file} could not be read: exit code ${code}`);
    }
    await chmod(target, 0o444); // to be read: nothing reads what is written there
    return uri;
  }
}

function namesIn(folder: string): Promise<string[]> {
  return readdir(folder).catch(() => []);
}
