/** The path of the last NaN report, and an event for when it changes. */

import * as vscode from "vscode";
import type { NanPath } from "./path";

const changed = new vscode.EventEmitter<NanPath | undefined>();
let current: NanPath | undefined;

/** Fires with the way of each new report, and with undefined where there is none any more. */
export const onNanPath: vscode.Event<NanPath | undefined> = changed.event;

/** The way of the last report. */
export function nanPath(): NanPath | undefined {
  return current;
}

export function setNanPath(path: NanPath | undefined): void {
  if (path || current) {
    current = path;
    changed.fire(path);
  }
}
