/** How often a server may be started again. */

/** Counts crashes: at most `most` in `within` milliseconds are answered by a new start. */
export class Restarts {
  private crashes: number[] = [];

  constructor(
    private readonly most = 4,
    private readonly within = 180_000,
    private readonly now: () => number = Date.now,
  ) {}

  /** Whether to start again after a crash just now. */
  again(): boolean {
    const now = this.now();
    this.crashes = this.crashes.filter((t) => now - t < this.within);
    this.crashes.push(now);
    return this.crashes.length <= this.most;
  }

  forget(): void {
    this.crashes = [];
  }
}
