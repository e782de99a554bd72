/** Requests from the page to the language server, by way of the extension. */

import type { HostMessage, PageMessage } from "../../shared/query/messages";

export class Rpc {
  private next = 1;
  private readonly pending = new Map<
    number,
    { resolve: (value: unknown) => void; reject: (error: Error) => void }
  >();

  constructor(private readonly post: (message: PageMessage) => void) {}

  /** `method` without its beginning, `opstep/workspace/`. Rejects with a text for people. */
  request<T>(method: string, params: Record<string, unknown>): Promise<T> {
    const id = this.next++;
    return new Promise<T>((resolve, reject) => {
      this.pending.set(id, { resolve: resolve as (value: unknown) => void, reject });
      this.post({ type: "request", id, method, params });
    });
  }

  /** To be called with each message; whether it was an answer. */
  receive(message: HostMessage): boolean {
    if (message.type !== "response") {
      return false;
    }
    const request = this.pending.get(message.id);
    this.pending.delete(message.id);
    if (message.error !== undefined) {
      request?.reject(new Error(message.error));
    } else {
      request?.resolve(message.result);
    }
    return true;
  }
}
