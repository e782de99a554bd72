/** What hunts and runs found: announced here, shown by the report's view. */

import * as vscode from "vscode";
import type { Finding } from "../../shared/nan/messages";
import type { Again } from "./again";
import type { Hunted } from "./reports";

export type { Again } from "./again";

export interface FoundByHunt {
  hunted: Hunted;
  again: Again;
}

export interface FoundInRun {
  finding: Finding;
  /** The workspace's file. */
  workspace: string;
}

const hunts = new vscode.EventEmitter<FoundByHunt>();
const recorded = new vscode.EventEmitter<FoundInRun>();

export const onHunted: vscode.Event<FoundByHunt> = hunts.event;
export const onRecorded: vscode.Event<FoundInRun> = recorded.event;

export function showHunted(found: FoundByHunt): void {
  hunts.fire(found);
}

export function showRecorded(found: FoundInRun): void {
  recorded.fire(found);
}
