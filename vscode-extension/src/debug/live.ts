/** Values of the present stop for the language server: it shows them where they are computed. */

import type { DebugProtocol } from "@vscode/debugprotocol";
import * as vscode from "vscode";
import type { Services, Stop } from "../services";

const MOST_VALUES = 500;
/** Scopes whose variables are values of the frame's graph, and that of named tensors. */
const OF_GRAPH = new Set(["Inputs", "Values"]);
const NAMED = "Params";

/** What the server takes: see opstep/lsp/custom/live.py. */
interface LiveValue {
  name: string;
  /** Null of a named tensor. */
  graph: string | null;
  text: string;
}

/** A stop that is left sooner is not looked at: who holds F10 down is not to wait for figures. */
const SETTLE_MS = 60;
/**
 * How long inline values wait for live ones, so that none is shown twice: also on a machine that is
 * busy. Where live ones cannot be had, that is told at once.
 */
const TIMEOUT_MS = 5000;

/** Hands the values of the chosen frame over at each stop, and takes them back when it goes on. */
export class Live implements vscode.Disposable {
  private shown: string | undefined;
  private readonly sent = new vscode.EventEmitter<number>();
  private frame: number | undefined;
  private readonly subscription: vscode.Disposable;

  constructor(private readonly services: Services) {
    this.subscription = services.onStop((stop) => void this.send(stop));
  }

  dispose(): void {
    this.subscription.dispose();
    this.sent.dispose();
  }

  /** Resolves when the values of a frame were handed over, or soon. */
  async settled(frameId: number): Promise<void> {
    if (this.frame === frameId) {
      return;
    }
    await new Promise<void>((resolve) => {
      const end = () => {
        clearTimeout(timer);
        subscription.dispose();
        resolve();
      };
      const timer = setTimeout(end, TIMEOUT_MS);
      const subscription = this.sent.event((sentFrame) => sentFrame === frameId && end());
    });
  }

  private async send(stop: Stop | undefined): Promise<void> {
    const { services } = this;
    this.frame = undefined;
    const uri = stop?.path.endsWith(".opg") ? vscode.Uri.file(stop.path).toString() : undefined;
    if (this.shown !== undefined && this.shown !== uri) {
      await services.notify("opstep/live", { uri: this.shown, values: [] });
      this.shown = undefined;
    }
    if (!stop || !uri) {
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    if (services.stop !== stop) {
      return;
    }
    try {
      const values = await valuesAt(stop);
      if (services.stop === stop) {
        this.shown = uri;
        await services.notify("opstep/live", { uri, values });
      }
    } catch (error) {
      services.log.debug(`no live values: ${error}`);
    }
    this.frame = stop.frameId;
    this.sent.fire(stop.frameId);
  }
}

/** What the variables view shows of each value of a frame. */
async function valuesAt(stop: Stop): Promise<LiveValue[]> {
  const { session, frameId, graph } = stop;
  const { scopes } = (await session.customRequest("scopes", {
    frameId,
  })) as DebugProtocol.ScopesResponse["body"];
  const values: LiveValue[] = [];
  for (const scope of scopes) {
    if (!OF_GRAPH.has(scope.name) && scope.name !== NAMED) {
      continue;
    }
    const { variables } = (await session.customRequest("variables", {
      variablesReference: scope.variablesReference,
    })) as DebugProtocol.VariablesResponse["body"];
    for (const { name, value, presentationHint } of variables.slice(0, MOST_VALUES)) {
      // One that is lazy has no figures yet, and groups of older values are no values.
      if (!presentationHint?.lazy && presentationHint?.kind !== "virtual") {
        values.push({ name, graph: scope.name === NAMED ? null : graph, text: value });
      }
    }
  }
  return values;
}
