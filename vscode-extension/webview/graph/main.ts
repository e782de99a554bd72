/** The Graph view in the browser. */

import type { ToHost, ToPage } from "../../shared/graph/messages";
import { type Kept, Page } from "./page";

const vscode = acquireVsCodeApi<Kept>();
const root = document.getElementById("root") ?? document.body;
const page = new Page(
  root,
  (message: ToHost) => vscode.postMessage(message),
  vscode.getState() ?? {},
  (kept) => vscode.setState(kept),
);
window.addEventListener("message", ({ data }: MessageEvent<ToPage>) => page.receive(data));
