/** Versions of Python and of opstep, as they are compared. */

/** The oldest Python that opstep runs on. */
export const OLDEST_PYTHON = "3.11";
/** The oldest opstep whose servers this extension speaks to. */
export const OLDEST_OPSTEP = "0.1.0";

/** Negative where `a` is older than `b`. `0.2.0rc1` and `0.2.0.dev3` are older than `0.2.0`. */
export function compareVersions(a: string, b: string): number {
  const left = parse(a);
  const right = parse(b);
  const length = Math.max(left.numbers.length, right.numbers.length);
  for (let i = 0; i < length; i++) {
    const difference = (left.numbers[i] ?? 0) - (right.numbers[i] ?? 0);
    if (difference !== 0) {
      return difference;
    }
  }
  return Number(right.early) - Number(left.early);
}

function parse(version: string): { numbers: number[]; early: boolean } {
  const match = /^\s*v?(\d+(?:\.\d+)*)(.*)$/.exec(version);
  return {
    numbers: (match?.[1] ?? "0").split(".").map(Number),
    early: /^[-._]?(a|b|rc|c|dev|alpha|beta|pre)/i.test(match?.[2] ?? ""),
  };
}
