/** A debug session that comes to where a NaN was born. */

import type * as vscode from "vscode";
import { isPython } from "../debug/launch";

/** How a debug session comes to the same place. */
export interface Again {
  config: vscode.DebugConfiguration;
  folder: vscode.WorkspaceFolder | undefined;
}

/**
 * The configuration of a session that begins behind the op of a value; without one, of what is found first. A
 * script runs once more, and stops there as it did.
 */
export function debugThere(
  { config }: Pick<Again, "config">,
  value: string,
  line: number | undefined,
): vscode.DebugConfiguration {
  const { noDebug: _, __sessionId: __, ...kept } = config;
  if (isPython(config)) {
    return { ...(kept as vscode.DebugConfiguration), suppressMultipleSessionWarning: true };
  }
  return {
    ...(kept as vscode.DebugConfiguration),
    name: `${config.name.replace(/ at \S+$/, "")} at ${value}`,
    stopOnEntry: false,
    mode: "debug",
    hunt: { value, ...(line && { line }) },
    // The session that ended here is another one.
    suppressMultipleSessionWarning: true,
  };
}
