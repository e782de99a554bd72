/** An input for an element's new value, in place of its text below the picture. */

import { messageOf } from "../../shared/errors";
import { elementExpression } from "../../shared/tensor/parts";
import { fill, h } from "../dom";
import { type Connection, Outdated } from "./connection";
import type { Model } from "./model";

export class ElementEditor {
  private input: HTMLInputElement | undefined;

  constructor(
    private readonly model: Model,
    private readonly connection: Connection,
    private readonly host: HTMLElement,
    /** It is over: what stood there is to be shown again. */
    private readonly closed: (error?: string) => void,
  ) {}

  /** Whether somebody types. */
  get open(): boolean {
    return this.input !== undefined;
  }

  begin(place: readonly number[], text: string): void {
    const input = h("input", { value: text, "aria-label": `New value of [${place.join(", ")}]` });
    this.input = input;
    fill(this.host, `[${place.join(", ")}] = `, input);
    input.focus();
    input.select();
    input.addEventListener("keydown", (e) => {
      e.stopPropagation();
      if (e.key === "Enter") {
        void this.set(place, input.value);
      } else if (e.key === "Escape") {
        this.end();
      }
    });
    input.addEventListener("blur", () => this.end());
  }

  private end(error?: string): void {
    if (this.input) {
      this.input = undefined;
      this.closed(error);
    }
  }

  private async set(place: readonly number[], value: string): Promise<void> {
    const expression = elementExpression(this.model.subject.expression, [...place]);
    this.end();
    try {
      await this.connection.call("set", { expression, value: this.model.written(value) });
    } catch (error) {
      if (!(error instanceof Outdated)) {
        this.closed(messageOf(error));
      }
    }
  }
}
