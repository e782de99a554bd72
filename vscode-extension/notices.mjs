// Collects the licences of what is bundled: each asks that its text goes with every copy.
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

/** Writes the licences of all packages that went into some builds (esbuild's metafiles) to a file. */
export function writeNotices(metafiles, target) {
  const folders = new Set();
  for (const { inputs } of metafiles) {
    for (const input of Object.keys(inputs)) {
      const found = /^(?:.*\/)?node_modules\/(?:@[^/]+\/)?[^/]+/.exec(input);
      if (found) {
        folders.add(found[0]);
      }
    }
  }
  const texts = [...folders].sort().map(notice);
  writeFileSync(target, `${texts.join(`\n${"-".repeat(80)}\n\n`)}`);
}

function notice(folder) {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((entry) => /^(licen[cs]e|copying)/i.test(entry));
  const path = file && join(folder, file);
  // Packages of one repository may have its licence in their parent's package alone.
  const beside = join("node_modules", "vscode-languageserver", "License.txt");
  const text = path
    ? readFileSync(path, "utf8")
    : name.startsWith("vscode-") && existsSync(beside)
      ? readFileSync(beside, "utf8")
      : `Licensed under ${license}.\n`;
  return `${name} ${version}\n\n${text.trim()}\n`;
}
