/** Where the messages of a debug session go: a server that we start, or one that listens. */

import { spawn } from "node:child_process";
import net from "node:net";
import * as vscode from "vscode";
import type { Python } from "../python";
import type { Services } from "../services";
import { MODULE } from "../shell";
import { isPython, KERNEL } from "./launch";
import { ProcessAdapter } from "./processAdapter";
import { Spare } from "./spare";

const LOOPBACK = new Set(["127.0.0.1", "localhost", "::1"]);

/** What debugpy sends, for clients that start no session at `startDebugging`. */
const CHILD = "debugpyAttach";

/** Registers both types: graphs, and the kernels that are entered from them. */
export function registerAdapters(
  { context, log, started }: Services,
  python: Python,
): vscode.Disposable {
  const spare = new Spare(python, started, log);
  return vscode.Disposable.from(
    spare,
    vscode.debug.registerDebugAdapterDescriptorFactory("opstep", {
      createDebugAdapterDescriptor: async ({ configuration }) => {
        const ofPython = isPython(configuration);
        if (configuration.request === "attach" && !ofPython) {
          return serverAt(configuration.host, configuration.port);
        }
        const command = await python.need();
        const ahead = ofPython ? undefined : spare.take(command);
        const args = [...MODULE, "dap", ...(ofPython ? ["--script"] : [])];
        log.info(`debugger: ${[command, ...args].join(" ")}${ahead ? ", ahead" : ""}`);
        const logs = configuration.logToFile && { DEBUGPY_LOG_DIR: context.logUri.fsPath };
        const child = ahead ?? spawn(command, args, { env: { ...process.env, ...logs } });
        if (!ahead) {
          child.stderr.on("data", (data) => log.debug(`debugger: ${data}`));
        }
        const tell = (why: string) => void vscode.window.showErrorMessage(why);
        return new vscode.DebugAdapterInlineImplementation(new ProcessAdapter(child, tell));
      },
    }),
    // debugpy speaks the protocol on this port itself: the Python debugger need not be there.
    vscode.debug.registerDebugAdapterDescriptorFactory(KERNEL, {
      createDebugAdapterDescriptor: ({ configuration }) =>
        serverAt(configuration.connect?.host, configuration.connect?.port),
    }),
    vscode.debug.onDidReceiveDebugSessionCustomEvent(({ session, event, body }) => {
      if (session.type === "opstep" && event === CHILD) {
        void debugChild(session, body);
      }
    }),
    vscode.debug.registerDebugAdapterTrackerFactory("opstep", {
      createDebugAdapterTracker: messageTracer,
    }),
    vscode.debug.registerDebugAdapterTrackerFactory(KERNEL, {
      createDebugAdapterTracker: messageTracer,
    }),
  );
}

/** A session on a process that the script has started; it ends with the script's. */
async function debugChild(
  parentSession: vscode.DebugSession,
  configuration: vscode.DebugConfiguration,
): Promise<void> {
  const config = { ...configuration, type: "opstep", request: "attach" };
  const options = { parentSession, lifecycleManagedByParent: true };
  const started = await vscode.debug.startDebugging(parentSession.workspaceFolder, config, options);
  if (!started) {
    void vscode.window.showErrorMessage(`${config.name} could not be debugged.`);
  }
}

function serverAt(host: unknown = "127.0.0.1", port: unknown): vscode.DebugAdapterServer {
  const error = addressError(host, port);
  if (error) {
    throw new Error(error);
  }
  return new vscode.DebugAdapterServer(Number(port), String(host));
}

/** What is wrong with an address to attach to, in words; undefined where nothing is. */
export function addressError(host: unknown, port: unknown): string | undefined {
  if (typeof host !== "string" || !LOOPBACK.has(host)) {
    return `host: opstep attaches on this machine only (127.0.0.1), not to ${host}. For other machines, use an SSH tunnel or VS Code Remote.`;
  }
  if (!Number.isInteger(port) || Number(port) < 1 || Number(port) > 65535) {
    return "port: give the port that the Python program passed to opstep.debug.listen.";
  }
  return undefined;
}

/** Whether something listens there. */
export function isListening(host: string, port: number, timeout = 2000): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = net.connect({ host, port });
    const end = (there: boolean) => {
      socket.destroy();
      resolve(there);
    };
    socket.setTimeout(timeout, () => end(false));
    socket.once("connect", () => end(true)).once("error", () => end(false));
  });
}

/**
 * All messages of a session on the console, one a line as JSON, where the setting
 * opstep.debug.traceMessages asks for it.
 */
function messageTracer(session: vscode.DebugSession): vscode.DebugAdapterTracker | undefined {
  if (!vscode.workspace.getConfiguration("opstep.debug").get<boolean>("traceMessages")) {
    return undefined;
  }
  const print = (message: unknown) => console.log(`${session.type} dap ${JSON.stringify(message)}`);
  return { onWillReceiveMessage: print, onDidSendMessage: print };
}
