/** Which Python runs opstep: candidates in order, a probe of each, and messages about them. */

import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { homedir } from "node:os";
import path from "node:path";
import { compareVersions, OLDEST_OPSTEP, OLDEST_PYTHON } from "./versions";

/** A Python that may have opstep, and why it came to mind. */
export interface Candidate {
  path: string;
  origin: "setting" | "extension" | "venv" | "path";
}

/** What a Python says of itself. */
export interface Probe {
  /** Of Python: `3.11.2`. */
  version: string;
  /** Of opstep; undefined where it is not installed. */
  opstep?: string;
  /** Whether opstep brings the language server. */
  servers: boolean;
  /** Packages that opstep needs and that are not there. */
  missing: string[];
  executable: string;
}

type Verdict =
  | "ready"
  | "absent"
  | "broken"
  | "old-python"
  | "no-opstep"
  | "old-opstep"
  | "incomplete";

export interface Interpreter extends Candidate {
  verdict: Verdict;
  probe?: Probe;
  /** Of a Python that does not start: what it wrote. */
  error?: string;
}

/** What candidates are found from. */
export interface Environment {
  /** `opstep.python`. */
  setting: string;
  /** The interpreter that the Python extension has chosen. */
  active?: string;
  folders: string[];
  /** The file in the editor. */
  file?: string;
  /** PATH. */
  searchPath: string;
  platform: NodeJS.Platform;
  home?: string;
  exists?: (file: string) => boolean;
}

/** `~`, `${workspaceFolder}`, `${env:NAME}`; a relative path is relative to the first folder. */
export function expandPath(
  text: string,
  folders: string[],
  home = homedir(),
  env: NodeJS.ProcessEnv = process.env,
): string {
  const expanded = text
    .trim()
    .replace(/^~(?=$|[/\\])/, () => home)
    .replace(/\$\{workspaceFolder(?::([^}]+))?\}/g, (_, name: string | undefined) => {
      const folder = name ? folders.find((f) => path.basename(f) === name) : folders[0];
      return folder ?? "";
    })
    .replace(/\$\{userHome\}/g, () => home)
    .replace(/\$\{env:([^}]+)\}/g, (_, name: string) => env[name] ?? "");
  const isPath = /[/\\]/.test(expanded);
  return isPath && !path.isAbsolute(expanded) && folders[0]
    ? path.join(folders[0], expanded)
    : expanded;
}

/** A path inside one of the folders as a setting that holds wherever the folder is. */
export function inFolder(file: string, folders: string[]): string | undefined {
  for (const folder of folders) {
    const inside = path.relative(folder, file);
    if (path.isAbsolute(file) && inside && !inside.startsWith("..") && !path.isAbsolute(inside)) {
      const name = folders.length > 1 ? `:${path.basename(folder)}` : "";
      return `\${workspaceFolder${name}}/${inside.split(path.sep).join("/")}`;
    }
  }
  return undefined;
}

/** Pythons in the order in which they are tried, each once. A setting is the only one. */
export function candidates(environment: Environment): Candidate[] {
  const exists = environment.exists ?? existsSync;
  const windows = environment.platform === "win32";
  const found: Candidate[] = [];
  const add = (file: string | undefined, origin: Candidate["origin"]) => {
    if (file && !found.some((c) => c.path === file)) {
      found.push({ path: file, origin });
    }
  };
  const onPath = (name: string) =>
    environment.searchPath
      .split(windows ? ";" : ":")
      .filter(Boolean)
      .map((folder) => path.join(folder, windows ? `${name}.exe` : name))
      .find(exists);

  if (environment.setting.trim()) {
    const configured = expandPath(environment.setting, environment.folders, environment.home);
    add(/[/\\]/.test(configured) ? configured : (onPath(configured) ?? configured), "setting");
    return found;
  }
  add(environment.active, "extension");
  // A folder of examples is often opened alone: its environment is that of the folder around it.
  const above = environment.folders.flatMap((folder) => parents(folder));
  for (const folder of [...environment.folders, ...parents(environment.file), ...above]) {
    for (const name of [".venv", "venv"]) {
      const inside = windows ? ["Scripts", "python.exe"] : ["bin", "python"];
      const python = path.join(folder, name, ...inside);
      if (exists(python)) {
        add(python, "venv");
      }
    }
  }
  for (const name of ["python3", "python"]) {
    add(onPath(name), "path");
  }
  return found;
}

function parents(file: string | undefined): string[] {
  const folders: string[] = [];
  for (let folder = file && path.dirname(file); folder; folder = path.dirname(folder)) {
    folders.push(folder);
    if (folder === path.dirname(folder)) {
      break;
    }
  }
  return folders;
}

// Nothing of opstep is imported: a broken installation must not hide that Python is fine. It must
// run in every Python, Python 2 included, so that old ones can be named.
const PROBE = `
import json, sys
facts = {"version": ".".join(map(str, sys.version_info[:3])), "executable": sys.executable}
try:
    import os
    # -c puts the present folder in front: what lies there is not what is installed.
    sys.path = [p for p in sys.path if p]
    from importlib import metadata, util
    spec = util.find_spec("opstep")
    if spec is not None and spec.origin:
        try:
            facts["opstep"] = metadata.version("opstep")
        except metadata.PackageNotFoundError:
            import opstep
            facts["opstep"] = opstep.__version__
        needed = ("click", "numba", "numpy", "pygls", "rich", "safetensors")
        facts["missing"] = [name for name in needed if util.find_spec(name) is None]
        facts["servers"] = os.path.isdir(os.path.join(os.path.dirname(spec.origin), "lsp"))
except ImportError:
    pass
print(json.dumps(facts))
`;

/** Asks a Python what it is. Nothing of the open folder is run. */
export function probe(python: string, timeout = 20_000): Promise<Probe | string> {
  return new Promise((resolve) => {
    execFile(python, ["-c", PROBE], { timeout, cwd: homedir() }, (error, stdout, stderr) => {
      if (error) {
        const killed = error.killed ? `no answer within ${timeout / 1000} s` : "";
        resolve(killed || lastLine(stderr) || error.message);
        return;
      }
      try {
        const facts = JSON.parse(stdout.trim().split("\n").at(-1) ?? "") as Partial<Probe>;
        resolve({
          version: String(facts.version),
          opstep: facts.opstep,
          servers: facts.servers === true,
          missing: Array.isArray(facts.missing) ? facts.missing.map(String) : [],
          executable: facts.executable || python,
        });
      } catch {
        resolve("it did not respond like a Python interpreter");
      }
    });
  });
}

function lastLine(text: string): string {
  return text.trim().split("\n").at(-1) ?? "";
}

/** A candidate with what is known of it. */
export async function examine(
  candidate: Candidate,
  probeWith: (python: string) => Promise<Probe | string> = probe,
  exists: (file: string) => boolean = existsSync,
): Promise<Interpreter> {
  if (path.isAbsolute(candidate.path) && !exists(candidate.path)) {
    return { ...candidate, verdict: "absent" };
  }
  const answer = await probeWith(candidate.path);
  if (typeof answer === "string") {
    const absent = /ENOENT/.test(answer);
    return { ...candidate, verdict: absent ? "absent" : "broken", error: answer };
  }
  return { ...candidate, verdict: judge(answer), probe: answer };
}

function judge(found: Probe): Verdict {
  if (compareVersions(found.version, OLDEST_PYTHON) < 0) {
    return "old-python";
  }
  if (found.opstep === undefined) {
    return "no-opstep";
  }
  if (!found.servers || compareVersions(found.opstep, OLDEST_OPSTEP) < 0) {
    return "old-opstep";
  }
  return found.missing.length > 0 ? "incomplete" : "ready";
}

// What is nearest to work, where nothing works.
const PREFERENCE: Verdict[] = [
  "ready",
  "incomplete",
  "old-opstep",
  "no-opstep",
  "old-python",
  "broken",
  "absent",
];

/** The first that is ready, or else the first of those that need least. */
function best(found: Interpreter[]): Interpreter | undefined {
  return PREFERENCE.map((v) => found.find((i) => i.verdict === v)).find((i) => i !== undefined);
}

/** Tries candidates one after the other until one is ready. */
export async function discover(
  tried: Candidate[],
  probeWith?: (python: string) => Promise<Probe | string>,
  exists?: (file: string) => boolean,
): Promise<{ chosen: Interpreter | undefined; found: Interpreter[] }> {
  const found: Interpreter[] = [];
  for (const candidate of tried) {
    const interpreter = await examine(candidate, probeWith, exists);
    found.push(interpreter);
    if (interpreter.verdict === "ready") {
      break;
    }
  }
  return { chosen: best(found), found };
}

export type Action = "install" | "select" | "docs" | "settings";

/** What is said where no Python is ready, and what can be done about it. */
export function complaint(
  chosen: Interpreter | undefined,
  tried: Interpreter[] = [],
): { text: string; actions: Action[] } {
  const { text, actions } = describe(chosen);
  const others = tried.filter((one) => one.path !== chosen?.path).map((one) => one.path);
  return {
    text: text && others.length > 0 ? `${text} Also tried: ${others.join(", ")}.` : text,
    actions,
  };
}

function describe(chosen: Interpreter | undefined): { text: string; actions: Action[] } {
  if (!chosen) {
    return {
      text: `opstep needs Python ${OLDEST_PYTHON} or newer, and none was found. Install one, or select its location.`,
      actions: ["select", "docs"],
    };
  }
  const where = chosen.path;
  const setting = chosen.origin === "setting" ? " (setting opstep.python)" : "";
  switch (chosen.verdict) {
    case "absent":
      return { text: `${where}${setting} does not exist.`, actions: ["select", "settings"] };
    case "broken":
      return {
        text: `${where}${setting} does not start: ${chosen.error ?? "no reason given"}`,
        actions: ["select", "docs"],
      };
    case "old-python":
      return {
        text: `opstep needs Python ${OLDEST_PYTHON} or newer; ${where}${setting} is ${chosen.probe?.version}.`,
        actions: ["select", "docs"],
      };
    case "no-opstep":
      return {
        text: `opstep is not installed in ${where}${setting} (Python ${chosen.probe?.version}).`,
        actions: ["install", "select", "docs"],
      };
    case "old-opstep":
      return {
        text: `opstep ${chosen.probe?.opstep} in ${where}${setting} is too old: this extension needs ${OLDEST_OPSTEP} or newer, with its language server.`,
        actions: ["install", "select", "docs"],
      };
    case "incomplete":
      return {
        text: `opstep in ${where}${setting} lacks ${chosen.probe?.missing.join(", ")}: reinstall it.`,
        actions: ["install", "select", "docs"],
      };
    case "ready":
      return { text: "", actions: [] };
  }
}
