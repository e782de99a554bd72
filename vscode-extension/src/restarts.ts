/** How often, and how soon, a server is started again after it ended by itself. */

/** Counts crashes: `most` in `within` milliseconds are answered by a new start, each a bit later. */
export class Restarts {
  private crashes: number[] = [];

  constructor(
    private readonly most = 4,
    private readonly within = 180_000,
    private readonly now: () => number = Date.now,
  ) {}

  /** Milliseconds to wait before a new start, after a crash just now; undefined for no start. */
  again(): number | undefined {
    const now = this.now();
    this.crashes = this.crashes.filter((t) => now - t < this.within);
    this.crashes.push(now);
    const count = this.crashes.length;
    return count > this.most ? undefined : 100 * 4 ** (count - 1);
  }

  forget(): void {
    this.crashes = [];
  }
}
