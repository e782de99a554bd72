/** What stands at the axis of a histogram. */

/**
 * Both ends, and at most `count` round numbers at equal distances between them, none of which is
 * nearer to an end than half a distance.
 */
export function axisTicks(low: number, high: number, count: number): number[] {
  const least = (high - low) / Math.max(count, 1);
  if (!(least > 0) || !Number.isFinite(least)) {
    return [low];
  }
  const unit = 10 ** Math.floor(Math.log10(least));
  const step = unit * ([1, 2, 5].find((k) => k * unit >= least) ?? 10);
  const between: number[] = [];
  for (let k = Math.ceil(low / step + 0.5); k * step <= high - step / 2; k++) {
    between.push(Number((k * step).toPrecision(4)));
  }
  return [low, ...between, high];
}
