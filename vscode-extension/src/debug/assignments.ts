/** Names that Python assigns above a line, for inline values. */

export interface Assignment {
  line: number;
  column: number;
  name: string;
}

const DEF = /^(\s*)(?:async\s+)?def\s/;
const ASSIGNED =
  /^\s*([A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*(?::[^=]+)?(?:[-+*/@|&^%]|\/\/|\*\*|<<|>>)?=(?!=)/;
const NAME = /[A-Za-z_]\w*/g;

/** In the function around a line, from 0: what it assigns above that line, in order. */
export function assignedAbove(lines: readonly string[], stopped: number): Assignment[] {
  const first = functionAround(lines, stopped);
  const found: Assignment[] = [];
  for (let line = first; line < stopped; line++) {
    const text = lines[line] ?? "";
    const targets = ASSIGNED.exec(text)?.[1];
    if (targets === undefined) {
      continue;
    }
    const column = text.indexOf(targets);
    for (const match of targets.matchAll(NAME)) {
      found.push({ line, column: column + match.index, name: match[0] });
    }
  }
  return found;
}

/** The line of the innermost `def` above a line that is indented less; 0 where there is none. */
function functionAround(lines: readonly string[], stopped: number): number {
  const indent = /^\s*/.exec(lines[stopped] ?? "")?.[0].length ?? 0;
  for (let line = stopped - 1; line >= 0; line--) {
    const match = DEF.exec(lines[line] ?? "");
    if (match && (match[1]?.length ?? 0) < indent) {
      return line + 1;
    }
  }
  return 0;
}
