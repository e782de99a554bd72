/** Which stops a NaN report is about. */

interface StopText {
  reason: string;
  text: string;
}

/** Whether a run stands because something is not finite. */
export function isNanStop({ reason, text }: StopText): boolean {
  return reason === "exception" && /\b(nan|inf|infinity)\b/i.test(text);
}

/** The result with NaNs or infinities for which a run stands at its end. */
export function oddResult({ reason, text }: StopText): string | undefined {
  return reason === "pause"
    ? /has returned;.*?(\S+) has [\d,]+ (?:NaN|infinite)/i.exec(text)?.[1]
    : undefined;
}
