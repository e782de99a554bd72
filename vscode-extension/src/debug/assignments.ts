/** Names that Python assigns above a line, and their values, for the ends of its lines. */

export interface Assignment {
  line: number;
  column: number;
  name: string;
}

/** A value behind its line: its text has the debugger's colours. */
export interface PlacedValue extends Assignment {
  text: string;
}

const COLOUR = new RegExp(`${String.fromCharCode(27)}\\[[\\d;]*m`, "g");
const LONGEST = 110; // characters of a value

/** Those that are not finite (the debugger colours that alone), or the others; their texts without colours. */
export function valuesByTrouble(values: readonly PlacedValue[], troubled: boolean): PlacedValue[] {
  return values
    .filter(({ text }) => text.search(COLOUR) >= 0 === troubled)
    .map((value) => {
      const text = value.text.replace(COLOUR, "");
      const [line = ""] = text.split("\n");
      const shown = line.slice(0, LONGEST - 1);
      return { ...value, text: shown.length < text.length ? `${shown}…` : text };
    });
}

const DEF = /^(\s*)(?:async\s+)?def\s/;
const ASSIGNED =
  /^\s*([A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*(?::[^=]+)?(?:[-+*/@|&^%]|\/\/|\*\*|<<|>>)?=(?!=)/;
const TOKEN = /[A-Za-z_]\w*|#.*|[^\s\w]/g;
const NAME = /[A-Za-z_]\w*/g;

/**
 * In the function around a line, from 0: its arguments, and what it assigns above that line, in order. A name
 * that is assigned again has the value of the last time, and stands there alone.
 */
export function assignedAbove(lines: readonly string[], stopped: number): Assignment[] {
  const first = functionAround(lines, stopped);
  const found = new Map<string, Assignment>();
  const note = (line: number, column: number, names: string) => {
    for (const match of names.matchAll(NAME)) {
      found.delete(match[0]);
      found.set(match[0], { line, column: column + match.index, name: match[0] });
    }
  };
  for (const { line, column, name } of argumentsOf(lines, first - 1)) {
    note(line, column, name);
  }
  for (let line = first; line < stopped; line++) {
    const text = lines[line] ?? "";
    const targets = ASSIGNED.exec(text)?.[1];
    if (targets !== undefined) {
      note(line, text.indexOf(targets), targets);
    }
  }
  return [...found.values()];
}

/** Those of the `def` of a line, if there is one: what follows its bracket, and each comma in it. */
function* argumentsOf(lines: readonly string[], line: number): Generator<Assignment> {
  let depth = 0;
  let begins = false;
  for (let at = line; DEF.test(lines[line] ?? "") && at < lines.length; at++) {
    for (const { 0: token, index } of (lines[at] ?? "").matchAll(TOKEN)) {
      if (token.startsWith("#")) {
        continue;
      }
      if (begins && /\w/.test(token)) {
        yield { line: at, column: index, name: token };
      }
      begins = depth === 1 && (token === "," || (begins && token === "*"));
      if ("([{".includes(token)) {
        depth += 1;
        begins = depth === 1;
      } else if (")]}".includes(token)) {
        depth -= 1;
        if (depth === 0) {
          return;
        }
      }
    }
  }
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
