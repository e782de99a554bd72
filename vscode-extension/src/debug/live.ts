/** Values of the present stop for the language server: it shows them where they are computed. */

import type { DebugProtocol } from "@vscode/debugprotocol";
import type * as vscode from "vscode";
import type { Services, Stop } from "../services";

const MOST_VALUES = 500;
/** Scopes whose variables are values of the graph. */
const SCOPES = new Set(["Inputs", "Values"]);

/** Hands the values of the chosen frame over at each stop, and takes them back when it goes on. */
export function registerLive(services: Services): vscode.Disposable {
  let sent: string | undefined;
  return services.onStop(async (stop) => {
    if (sent !== undefined && sent !== stop?.path) {
      await services.notify("opstep/live", { path: sent, values: {} });
      sent = undefined;
    }
    if (!stop?.path.endsWith(".opg")) {
      return;
    }
    try {
      const values = await valuesAt(stop);
      if (services.stop === stop) {
        sent = stop.path;
        const { path, graph, line } = stop;
        await services.notify("opstep/live", { path, graph, line, values });
      }
    } catch (error) {
      services.log.debug(`no live values: ${error}`);
    }
  });
}

/** Name -> what the variables view shows of it. */
async function valuesAt(stop: Stop): Promise<Record<string, string>> {
  const { session, frameId } = stop;
  const { scopes } = (await session.customRequest("scopes", {
    frameId,
  })) as DebugProtocol.ScopesResponse["body"];
  const values: Record<string, string> = {};
  for (const scope of scopes.filter((s) => SCOPES.has(s.name))) {
    const { variables } = (await session.customRequest("variables", {
      variablesReference: scope.variablesReference,
    })) as DebugProtocol.VariablesResponse["body"];
    for (const variable of variables.slice(0, MOST_VALUES)) {
      // One that is lazy has no figures yet, and groups of older values have no name.
      if (!variable.presentationHint?.lazy && /^[A-Za-z_]\w*$/.test(variable.name)) {
        values[variable.name] = variable.value;
      }
    }
  }
  return values;
}
