/** The values of a stopped frame: a line each, as the Variables view shows them. */

import type { DebugProtocol } from "@vscode/debugprotocol";
import type { Stop } from "../services";

const SHOWN = new Set(["Inputs", "Values", "All values", "Params"]);
const MOST_GROUPS = 60; // of a hundred values each

export class FrameValues {
  /** By name; of those whose statistics wait, the type. */
  readonly lines: Record<string, string> = {};
  private readonly waiting = new Map<string, number>();
  private groups = 0;

  constructor(private readonly stop: Stop) {}

  /** Reads all names. Rejects where the run has gone on meanwhile. */
  async read(): Promise<this> {
    const { session, frameId } = this.stop;
    const { scopes } = (await session.customRequest("scopes", {
      frameId,
    })) as DebugProtocol.ScopesResponse["body"];
    for (const scope of scopes.filter((s) => SHOWN.has(s.name))) {
      await this.children(scope.variablesReference);
    }
    return this;
  }

  /** The whole line of a value whose statistics waited; undefined where nothing was left to say. */
  async whole(name: string): Promise<string | undefined> {
    const reference = this.waiting.get(name);
    if (reference === undefined) {
      return undefined;
    }
    this.waiting.delete(name);
    const [child] = await this.variables(reference);
    if (child !== undefined) {
      this.lines[name] = child.value;
    }
    return child?.value;
  }

  private async children(reference: number): Promise<void> {
    for (const variable of await this.variables(reference)) {
      const { name, value, variablesReference, presentationHint } = variable;
      if (presentationHint?.kind === "virtual") {
        this.groups += 1;
        if (this.groups <= MOST_GROUPS) {
          await this.children(variablesReference);
        }
        continue;
      }
      this.lines[name] = value;
      if (presentationHint?.lazy) {
        this.waiting.set(name, variablesReference);
      }
    }
  }

  private async variables(variablesReference: number): Promise<DebugProtocol.Variable[]> {
    const answer = await this.stop.session.customRequest("variables", { variablesReference });
    return (answer as DebugProtocol.VariablesResponse["body"]).variables;
  }
}
