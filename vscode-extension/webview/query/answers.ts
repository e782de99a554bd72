/** The answer to the current query, as its rows arrive. */

import type { Answer } from "../../shared/query/messages";
import type { Sort } from "./pages";
import type { Rpc } from "./rpc";

interface AnswerEvents {
  /** The first rows, or the problem, are there. */
  first(answer: Answer): void;
  /** There are more rows. */
  more(answer: Answer): void;
  /** How far it is: also when it began, and when it ended. */
  progress(answer: Answer): void;
  failed(error: Error): void;
}

export class Answers {
  /** The name of the question at the server. */
  name = "";
  running = false;
  count = 0;
  private runs = 0;
  private readonly prefix = `panel-${Math.random().toString(36).slice(2, 10)}`;

  constructor(
    private readonly rpc: Rpc,
    private readonly events: AnswerEvents,
  ) {}

  /** Asks; resolves when all rows are there, or it was stopped, or another question came. */
  async ask(path: string, sql: string): Promise<void> {
    const before = this.name;
    const run = ++this.runs;
    this.name = `${this.prefix}-${run}`;
    const query = this.name;
    if (before) {
      void this.rpc.request("close", { query: before }).catch(() => undefined);
    }
    this.running = true;
    try {
      let answer = await this.rpc.request<Answer>("query", { query, path, sql });
      let begun = false;
      while (run === this.runs) {
        this.count = answer.count;
        if (!begun && (answer.done || answer.count > 0)) {
          begun = true;
          this.events.first(answer);
        } else if (begun) {
          this.events.more(answer);
        }
        this.running = !answer.done;
        this.events.progress(answer);
        if (answer.done) {
          return;
        }
        const limit = begun ? 0 : 200;
        answer = await this.rpc.request<Answer>("rows", {
          query,
          beyond: answer.count,
          limit,
          offset: 0,
        });
      }
    } catch (error) {
      if (run === this.runs) {
        this.running = false;
        this.events.failed(error as Error);
      }
    }
  }

  stop(): void {
    if (this.name) {
      void this.rpc.request("stop", { query: this.name }).catch(() => undefined);
    }
  }

  rows(offset: number, limit: number, sort: Sort | undefined): Promise<Answer> {
    return this.rpc.request<Answer>("rows", { query: this.name, offset, limit, ...sort });
  }

  async copy(format: string, offset: number, limit: number | undefined, sort: Sort | undefined) {
    const params = {
      query: this.name,
      format,
      offset,
      ...(limit !== undefined && { limit }),
      ...sort,
    };
    return (await this.rpc.request<{ text: string }>("copy", params)).text;
  }

  async field(row: number, of: number, sort: Sort | undefined): Promise<string> {
    const params = { query: this.name, row, of, ...sort };
    return (await this.rpc.request<{ text: string }>("field", params)).text;
  }
}
