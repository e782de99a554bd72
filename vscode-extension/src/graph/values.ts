/** The values of a stopped frame, a line each. */

import type { Value } from "../../shared/values/messages";
import type { Stop } from "../services";
import { allValuesOf, valuesOf } from "../values/requests";

export class FrameValues {
  /** By name; of those whose statistics wait, the type. */
  readonly lines: Record<string, string> = {};
  private readonly waiting = new Set<string>();

  constructor(private readonly stop: Stop) {}

  /** Reads all names. Rejects where the run has gone on meanwhile. */
  async read(): Promise<this> {
    for (const value of (await allValuesOf(this.stop, () => true)).values) {
      this.lines[value.name] = lineOf(value);
      if (value.text === undefined) {
        this.waiting.add(value.name);
      }
    }
    return this;
  }

  /** The whole line of a value whose statistics waited; undefined where nothing was left to say. */
  async whole(name: string): Promise<string | undefined> {
    if (!this.waiting.delete(name)) {
      return undefined;
    }
    const [value] = (await valuesOf(this.stop, { names: [name] })).values;
    if (value === undefined) {
      return undefined;
    }
    this.lines[name] = lineOf(value);
    return this.lines[name];
  }
}

/** A few elements speak for themselves. */
function lineOf({ type, text }: Value): string {
  if (text === undefined) {
    return type;
  }
  return type.endsWith("[]") || text.startsWith("[") ? text : `${type}  ${text}`;
}
