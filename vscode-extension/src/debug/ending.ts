/** A session that has failed where nobody was told: its console is shown. */

import type { DebugProtocol } from "@vscode/debugprotocol";
import { isScript } from "./launch";

/** Exit code of a run whose result is not finite: its report is shown. */
const FOUND = 5;

/** Follows one session by its messages. */
export class Ending {
  private known = false;

  constructor(private readonly program: unknown) {}

  /** To the debugger: who ends a session does not wait for what it says. */
  sent({ command }: Partial<DebugProtocol.Request>): void {
    this.known ||= command === "disconnect" || command === "terminate";
  }

  /** From the debugger; whether it has failed, and not where it stood last. */
  received({ event, body }: Partial<DebugProtocol.Event>): boolean {
    if (event === "stopped") {
      this.known = body?.reason === "exception";
    }
    const code: unknown = event === "exited" ? body?.exitCode : 0;
    return code !== 0 && !this.known && (code !== FOUND || isScript(this.program));
  }
}
