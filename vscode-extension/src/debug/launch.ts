/** What a launch configuration leaves open, from the settings. */

import path from "node:path";

/** The type of sessions of kernels that were entered from a graph. */
export const KERNEL = "opstep-kernel";

interface Defaults {
  /** `opstep.device`. */
  device: string;
  /** `opstep.mode`; `auto` leaves it to the debugger. */
  mode: string;
  folder?: string;
}

/** What is known of a launch configuration, whatever else it has. */
interface Launch {
  [name: string]: unknown;
  program?: unknown;
  device?: unknown;
  mode?: unknown;
  cwd?: string;
  noDebug?: boolean;
  request?: string;
}

/** The device and mode of the settings, and the folder that paths are relative to. */
export function applyDefaults<T extends Launch>(
  config: T,
  defaults: Defaults,
): T & { device: string; mode: string; cwd?: string } {
  const program = typeof config.program === "string" ? config.program : "";
  const beside = path.isAbsolute(program) ? path.dirname(program) : undefined;
  const mode = defaults.mode === "auto" ? (config.noDebug ? "async" : "debug") : defaults.mode;
  return {
    ...config,
    device: String(config.device ?? defaults.device),
    mode: String(config.mode ?? mode),
    cwd: config.cwd ?? defaults.folder ?? beside,
  };
}

/** How a configuration is called: `lenet.opg: main`. */
export function configurationName(file: string, graph: string): string {
  return `${path.basename(file)}: ${graph}`;
}

/** Whether `program` of a configuration is a Python script, as the debugger decides it. */
export function isScript(program: unknown): program is string {
  return typeof program === "string" && /\.pyw?$/i.test(program);
}

/** Whether a session is on Python, and not on a graph, as the debugger decides it. */
export function isPython(config: Launch): boolean {
  return config.request === "attach"
    ? ["connect", "listen", "processId"].some((name) => config[name] !== undefined)
    : isScript(config.program) || config.module !== undefined || config.code !== undefined;
}

/** A session of a kernel, to which VS Code gives the type of the session that has started it. */
export function isKernel({ request, connect, rules, subProcessId, name }: Launch): boolean {
  const isAttach = request === "attach" && connect !== undefined && subProcessId === undefined;
  return isAttach && Array.isArray(rules) && /^kernel /.test(String(name));
}

/**
 * A session on Python as the Python extension completes it: in a terminal, where the script can be typed to. The Debug
 * Console does not cover that; where there is no terminal it is opened by what is written in it (`opensConsole`).
 */
export function pythonDefaults<T extends Launch>(config: T): T {
  const console = config.console ?? (config.request === "launch" && "integratedTerminal");
  const isTerminal = console === "integratedTerminal" || console === "externalTerminal";
  return {
    ...(console && { console }),
    showReturnValue: true,
    ...(config.internalConsoleOptions === undefined && {
      internalConsoleOptions: "neverOpen",
      opensConsole: isTerminal ? "never" : "onOutput",
    }),
    ...config,
  };
}
