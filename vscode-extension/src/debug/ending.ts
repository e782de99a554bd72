/** How a session ended: whether it has failed where nobody has seen it, and by which signal. */

import { constants } from "node:os";
import type { DebugProtocol } from "@vscode/debugprotocol";

/** Exit code of a run whose result is not finite: its report is shown. */
const FOUND = 5;

/** Follows one session by its messages. */
export class Ending {
  private known = false;

  /** To the debugger: who ends a session does not wait for what it says. */
  sent({ command }: Partial<DebugProtocol.Request>): void {
    this.known ||= command === "disconnect" || command === "terminate";
  }

  /** From the debugger; the exit code, if it has failed, and not where it stood last. */
  received({ event, body }: Partial<DebugProtocol.Event>): number | undefined {
    if (event === "stopped") {
      this.known = body?.reason === "exception";
    }
    const code: unknown = event === "exited" ? body?.exitCode : 0;
    return code !== 0 && !this.known ? Number(code) : undefined;
  }
}

/** Whether an exit code of a run of a graph says that it has failed. */
export function hasFailed(code: number | undefined): boolean {
  return code !== undefined && code !== FOUND;
}

/** The signal that an exit code of debugpy stands for, of which it leaves the lowest eight bits. */
export function signalOf(code: number | undefined): string | undefined {
  const number = code === undefined ? 0 : -code & 0xff;
  return Object.entries(constants.signals).find(([, known]) => known === number)?.[0];
}
