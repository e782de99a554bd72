/** Statistics that the table lacks: asked for a few at a time, what is in sight first. */

import type { Value } from "../../shared/values/messages";
import { isCheap } from "../../shared/values/rows";

const AT_ONCE = 64;

export class Requests {
  private seen: string[] = [];
  private all: string[] = [];
  private pending: string[] | undefined;
  /** Asked for and not told: not asked again before the next stop. */
  private readonly failed = new Set<string>();

  constructor(private readonly ask: (names: string[]) => void) {}

  /** Rows in sight; of one that is not cheap, only if somebody asked for it. */
  want(values: readonly Value[], byHand = false): void {
    const names = lacking(values, byHand);
    this.seen = byHand ? [...names, ...this.seen] : names;
    this.next();
  }

  /** Rows out of sight, which are sorted or filtered by their statistics. */
  wantAll(values: readonly Value[]): void {
    this.all = lacking(values, false);
    this.next();
  }

  answered(values: readonly Value[]): void {
    const known = new Set(values.filter((v) => v.statistics).map((v) => v.name));
    const pending = this.pending ?? [];
    if (!pending.some((name) => known.has(name))) {
      for (const name of pending) {
        this.failed.add(name);
      }
    }
    this.pending = undefined;
    this.seen = this.seen.filter((name) => !known.has(name));
    this.all = this.all.filter((name) => !known.has(name));
    this.next();
  }

  /** Another stop: what was asked is answered no more. */
  clear(): void {
    this.pending = undefined;
    this.seen = [];
    this.all = [];
    this.failed.clear();
  }

  private next(): void {
    if (this.pending) {
      return;
    }
    const names = [...new Set([...this.seen, ...this.all])]
      .filter((name) => !this.failed.has(name))
      .slice(0, AT_ONCE);
    if (names.length > 0) {
      this.pending = names;
      this.ask(names);
    }
  }
}

function lacking(values: readonly Value[], byHand: boolean): string[] {
  return values.filter((v) => !v.statistics && (byHand || isCheap(v))).map((v) => v.name);
}
