/** The page's side of the messages: calls are answered, and those of an earlier stop thrown away. */

import type { Call, Calls, HostMessage, PageMessage } from "../../shared/tensor/messages";

interface Waiting {
  resolve: (answer: never) => void;
  reject: (error: Error) => void;
  turn: number;
}

/** An answer that nobody waits for any more: the run has continued, or something newer is wanted. */
export class Outdated extends Error {}

export class Connection {
  private last = 0;
  private readonly waiting = new Map<number, Waiting>();
  turn = 0;

  constructor(private readonly send: (message: PageMessage) => void) {}

  post(message: PageMessage): void {
    this.send(message);
  }

  call<C extends Call>(name: C, args: Calls[C]["arguments"]): Promise<Calls[C]["answer"]> {
    const id = ++this.last;
    const { turn } = this;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject, turn });
      this.send({ kind: "call", id, turn, name, arguments: args });
    });
  }

  /** Takes an answer; others are for the page. */
  answered(message: Extract<HostMessage, { kind: "answer" }>): void {
    const one = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    if (!one) {
      return;
    }
    if (one.turn !== this.turn) {
      one.reject(new Outdated("the run has continued"));
    } else if (message.error !== undefined) {
      one.reject(new Error(message.error));
    } else {
      one.resolve(message.answer as never);
    }
  }
}

/** Runs one task at a time; of those that come meanwhile only the newest, as sliders move on. */
export class LatestOnly {
  private busy = false;
  private next: (() => Promise<void>) | undefined;

  run(task: () => Promise<void>): void {
    this.next = task;
    if (!this.busy) {
      void this.work();
    }
  }

  private async work(): Promise<void> {
    this.busy = true;
    try {
      while (this.next) {
        const task = this.next;
        this.next = undefined;
        await task();
      }
    } finally {
      this.busy = false;
    }
  }
}
