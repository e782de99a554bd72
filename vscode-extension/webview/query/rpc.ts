/** Requests from the page to the language server, by way of the extension. */

import type { FromPage, ToPage } from "../../shared/query/messages";

export class Rpc {
  private next = 1;
  private readonly waiting = new Map<
    number,
    { resolve: (value: unknown) => void; reject: (error: Error) => void }
  >();

  constructor(private readonly post: (message: FromPage) => void) {}

  /** `method` without its beginning, `opstep/workspace/`. Rejects with a text for people. */
  request<T>(method: string, params: Record<string, unknown>): Promise<T> {
    const id = this.next++;
    return new Promise<T>((resolve, reject) => {
      this.waiting.set(id, { resolve: resolve as (value: unknown) => void, reject });
      this.post({ type: "request", id, method, params });
    });
  }

  /** To be called with each message; whether it was an answer. */
  take(message: ToPage): boolean {
    if (message.type !== "response") {
      return false;
    }
    const waiting = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    if (message.error !== undefined) {
      waiting?.reject(new Error(message.error));
    } else {
      waiting?.resolve(message.result);
    }
    return true;
  }
}
