/** The Graph view in the browser. */

import type { HostMessage, PageMessage, PageState } from "../../shared/graph/messages";
import { Page } from "./page";

const vscode = acquireVsCodeApi<PageState>();
const root = document.getElementById("root") ?? document.body;
const page = new Page(
  root,
  (message: PageMessage) => vscode.postMessage(message),
  vscode.getState() ?? {},
  (state) => vscode.setState(state),
);
window.addEventListener("message", ({ data }: MessageEvent<HostMessage>) => page.receive(data));
