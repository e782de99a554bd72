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

/** Whether a breakpoint may stop a script: those in files of graphs are left from other sessions. */
export function stopsScripts({
  enabled,
  location,
}: {
  enabled: boolean;
  location?: { uri: { path: string } };
}): boolean {
  return enabled && !location?.uri.path.endsWith(".opg");
}
