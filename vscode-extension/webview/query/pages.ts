/** Rows of an answer, fetched a page at a time as they come into sight. */

import type { Answer, Cell } from "../../shared/query/messages";
import { pagesOf } from "./windowing";

const PAGE = 200;
const MAX_PAGES = 60;

export interface Sort {
  column: number;
  descending: boolean;
}

type Fetch = (offset: number, limit: number, sort: Sort | undefined) => Promise<Answer>;

export class Pages {
  private readonly pages = new Map<number, Cell[][]>();
  private readonly loading = new Set<number>();
  private round = 0;
  sort: Sort | undefined;

  constructor(
    private readonly fetch: Fetch,
    private readonly loaded: () => void,
    private readonly failed: (error: Error) => void,
  ) {}

  /** The first rows, which came with the answer. */
  begin(rows: Cell[][]): void {
    this.forget();
    this.sort = undefined;
    if (rows.length > 0) {
      this.pages.set(0, rows);
    }
  }

  /** Another order: all pages are fetched anew. */
  order(sort: Sort | undefined): void {
    this.forget();
    this.sort = sort;
  }

  /** A row, or undefined while it is on its way. */
  row(index: number): Cell[] | undefined {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  /** Fetches what is missing of these rows; `count`: rows of the whole answer so far. */
  want(first: number, count: number, all: number): void {
    for (const page of pagesOf(first, count, PAGE)) {
      const there = this.pages.get(page);
      const whole = Math.min(PAGE, all - page * PAGE);
      if (there) {
        this.pages.delete(page); // and to the end: those that were looked at last stay
        this.pages.set(page, there);
      }
      if ((there?.length ?? 0) < whole && !this.loading.has(page)) {
        void this.load(page);
      }
    }
  }

  private async load(page: number): Promise<void> {
    const round = this.round;
    this.loading.add(page);
    try {
      const answer = await this.fetch(page * PAGE, PAGE, this.sort);
      if (round !== this.round) {
        return;
      }
      this.pages.set(page, answer.rows);
      while (this.pages.size > MAX_PAGES) {
        const [oldest] = this.pages.keys();
        this.pages.delete(oldest as number);
      }
      this.loaded();
    } catch (error) {
      if (round === this.round) {
        this.failed(error as Error);
      }
    } finally {
      if (round === this.round) {
        this.loading.delete(page);
      }
    }
  }

  private forget(): void {
    this.round++;
    this.pages.clear();
    this.loading.clear();
  }
}
