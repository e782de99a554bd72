/** Layouts in a worker: only the newest request is answered, earlier ones are dropped. */

import type { Layout, LayoutRequest } from "./layout";
import source from "./layout.worker.ts?source";

/** A newer layout was requested before this one was done. */
export class Superseded extends Error {}

export class LayoutRunner {
  private worker: Worker | undefined;
  private last = 0;
  private waiting: { stop: (error: Error) => void } | undefined;

  /** The layout of a picture. Rejects with `Superseded` if a newer one is requested meanwhile. */
  run(request: LayoutRequest): Promise<Layout> {
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
        if (data.layout !== undefined) {
          resolve(data.layout);
        } else {
          reject(new Error(data.error ?? "the layout failed"));
        }
      };
      worker.onerror = (event) => reject(new Error(event.message));
      worker.postMessage({ ...request, id });
    });
  }

  /** Cancels a running layout by ending its worker: there is no other way to interrupt one. */
  cancel(): void {
    if (this.waiting !== undefined) {
      this.worker?.terminate();
      this.worker = undefined;
      this.waiting.stop(new Superseded());
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
  layout?: Layout;
  error?: string;
}
