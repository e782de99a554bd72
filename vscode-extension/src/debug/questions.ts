/** Questions about a stop. */

import * as vscode from "vscode";
import type { Services, Stop } from "../services";

/**
 * Asks questions that a stop has answers to; `gone`, for each of them, closes the one that is open when the
 * run goes on or another frame is chosen. Keys of the debugger reach it all the same.
 */
export async function whileStopped<T>(
  services: Pick<Services, "onStop">,
  stop: Pick<Stop, "session" | "frameId">,
  ask: (gone: vscode.CancellationToken) => Thenable<T>,
): Promise<T> {
  const gone = new vscode.CancellationTokenSource();
  const left = services.onStop((now) => {
    if (now?.session !== stop.session || now.frameId !== stop.frameId) {
      gone.cancel();
    }
  });
  try {
    return await ask(gone.token);
  } finally {
    left.dispose();
    gone.dispose();
  }
}
