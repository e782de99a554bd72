/** Finds a statement of a trace in a text that may have changed since. */

/** The bare text: without what only lays it out, blanks and commas at the ends of lists. */
function stripLayout(text: string): string {
  return text.replaceAll(/[\s,]+/g, "");
}

/**
 * The line of a statement, from 0: the one that it was on, else the nearest one that begins with
 * it; undefined where it is nowhere any more. A statement may go over several lines.
 */
export function findStatement(text: string, line: number, statement: string): number | undefined {
  const target = stripLayout(statement);
  const lines = text.split("\n");
  if (target === "") {
    return line < lines.length ? line : undefined;
  }
  const matchesAt = (at: number) => {
    if (at < 0 || at >= lines.length) {
      return false;
    }
    let found = "";
    for (let k = at; k < lines.length && found.length < target.length; k++) {
      found += stripLayout((lines[k] ?? "").split("#")[0] ?? "");
      if (k === at && found === "") {
        return false;
      }
    }
    return found.startsWith(target);
  };
  const from = Math.min(line, lines.length - 1);
  for (let off = 0; off < lines.length; off++) {
    for (const at of off === 0 ? [from] : [from - off, from + off]) {
      if (matchesAt(at)) {
        return at;
      }
    }
  }
  return undefined;
}

const MOST = 4000; // characters of a statement that is looked for

/** What stands from a line on, from 0: its statement, and more. Comments are left out. */
export function textFrom(text: string, line: number): string {
  let found = "";
  for (const each of text.split("\n").slice(line)) {
    found += `${each.split("#")[0]}\n`;
    if (found.length > MOST) {
      break;
    }
  }
  return found.slice(0, MOST);
}

/** Paths that a file's name in a trace may stand for: relative ones are as the run was given them. */
export function candidatePaths(file: string, folders: readonly string[]): string[] {
  if (/^(\/|[A-Za-z]:[\\/])/.test(file)) {
    return [file];
  }
  return folders.map((folder) => `${folder.replace(/[\\/]$/, "")}/${file}`);
}
