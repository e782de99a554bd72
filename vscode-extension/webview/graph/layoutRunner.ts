/** Layouts in a worker: the last one asked for wins, and those that were overtaken are dropped. */

import type { Arranged, Asked } from "./layout";
import source from "./layout.worker.ts?source";

/** Asked for again before it was there. */
export class Overtaken extends Error {}

export class Arranger {
  private worker: Worker | undefined;
  private last = 0;
  private waiting: { stop: (error: Error) => void } | undefined;

  /** The layout of a picture. Rejects with `Overtaken` where another one was asked for since. */
  arrange(asked: Asked): Promise<Arranged> {
    this.cancel();
    const worker = this.worker ?? this.started();
    this.last += 1;
    const id = this.last;
    return new Promise((resolve, reject) => {
      this.waiting = { stop: reject };
      worker.onmessage = ({ data }: MessageEvent<Answer>) => {
        if (data.id !== id) {
          return;
        }
        this.waiting = undefined;
        if (data.arranged !== undefined) {
          resolve(data.arranged);
        } else {
          reject(new Error(data.error ?? "the layout failed"));
        }
      };
      worker.onerror = (event) => reject(new Error(event.message));
      worker.postMessage({ ...asked, id });
    });
  }

  /** Ends a layout that is under way: its worker with it, which cannot be interrupted otherwise. */
  cancel(): void {
    if (this.waiting !== undefined) {
      this.worker?.terminate();
      this.worker = undefined;
      this.waiting.stop(new Overtaken());
      this.waiting = undefined;
    }
  }

  private started(): Worker {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    this.worker = new Worker(url);
    URL.revokeObjectURL(url);
    return this.worker;
  }
}

interface Answer {
  id: number;
  arranged?: Arranged;
  error?: string;
}
