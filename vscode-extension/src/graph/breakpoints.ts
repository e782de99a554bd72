/** Breakpoints on lines of programs, as the view shows and toggles them. */

import * as vscode from "vscode";
import type { Breakpoint } from "../../shared/graph/messages";

/** By URI of the file. */
export function breakpoints(): Record<string, Breakpoint[]> {
  const found: Record<string, Breakpoint[]> = {};
  for (const each of vscode.debug.breakpoints) {
    if (each instanceof vscode.SourceBreakpoint) {
      const uri = each.location.uri.toString();
      found[uri] ??= [];
      found[uri]?.push({
        line: each.location.range.start.line,
        enabled: each.enabled,
        special: Boolean(each.condition ?? each.hitCondition ?? each.logMessage),
      });
    }
  }
  return found;
}

/** Takes away the breakpoints of some lines, or sets one on the first. */
export function toggle(uri: vscode.Uri, first: number, last = first): void {
  const there = vscode.debug.breakpoints.filter(
    (each) =>
      each instanceof vscode.SourceBreakpoint &&
      each.location.uri.toString() === uri.toString() &&
      each.location.range.start.line >= first &&
      each.location.range.start.line <= last,
  );
  if (there.length > 0) {
    vscode.debug.removeBreakpoints(there);
  } else {
    const at = new vscode.Location(uri, new vscode.Position(first, 0));
    vscode.debug.addBreakpoints([new vscode.SourceBreakpoint(at)]);
  }
}
