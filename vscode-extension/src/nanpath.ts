/** The way that NaNs and infinities came, for views that colour it. */

import * as vscode from "vscode";

/** `path`: the file; `lines` from 1 and `values` by name, from the origin to what was asked about. */
export interface NanPath {
  path: string;
  lines: number[];
  values: string[];
}

const changed = new vscode.EventEmitter<NanPath | undefined>();
let present: NanPath | undefined;

/** Fires with the way of each new report, and with undefined where there is none any more. */
export const onNanPath: vscode.Event<NanPath | undefined> = changed.event;

/** The way of the last report. */
export function nanPath(): NanPath | undefined {
  return present;
}

export function setNanPath(path: NanPath | undefined): void {
  if (path || present) {
    present = path;
    changed.fire(path);
  }
}
