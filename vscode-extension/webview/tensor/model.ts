/** What the page shows, and what it knows of it. */

import { type Axes, fitted } from "../../src/tensor/axes";
import { Elements } from "../../src/tensor/elements";
import {
  compared,
  FIRST_VIEW,
  type Figures,
  numberOf,
  type Place,
  type Slice,
  type Subject,
  type TensorType,
  type ViewState,
} from "../../src/tensor/messages";
import type { Extent } from "../../src/tensor/scaling";

export class Model {
  subject: Subject = { expression: "" };
  view: ViewState = structuredClone(FIRST_VIEW);
  place: Place | undefined;
  type: TensorType | undefined;
  figures: Figures | undefined;
  /** What stands in the way of a picture; the last one stays, dimmed. */
  trouble = "";
  /** running: the run goes on; ended: there is no session any more. */
  state: "stopped" | "running" | "ended" = "running";
  axes: Axes = fitted(undefined, []);
  cursor: number[] | undefined;
  pins: { place: number[]; text: string; was?: string }[] = [];

  get shape(): readonly number[] {
    return this.type?.shape ?? [];
  }

  get earlier(): string | undefined {
    return compared(this.subject.expression, this.view.comparison);
  }

  /** Takes a view that was remembered: what this version does not know of keeps its first value. */
  remember(view: ViewState | undefined): void {
    this.view = { ...structuredClone(FIRST_VIEW), ...view };
  }

  /** Takes a type; the axes stay where they fit. */
  become(type: TensorType): void {
    this.type = type;
    this.axes = fitted(this.view.axes, type.shape);
  }

  setAxes(axes: Axes): void {
    this.axes = axes;
    this.view.axes = axes;
  }

  elements(slice: Slice): Elements {
    const unwritten = slice.dtype === this.type?.dtype ? this.type.unwritten : undefined;
    return new Elements(slice.dtype, slice.shape, slice.bytes, unwritten);
  }

  /** The extent of the whole tensor, where its figures are there. */
  get extent(): Extent | undefined {
    const f = this.figures;
    const min = numberOf(f?.min);
    const max = numberOf(f?.max);
    if (!f || min === undefined || max === undefined) {
      return undefined;
    }
    const first = f.histogram.findIndex((n) => n > 0);
    const least = first < 0 ? Number.POSITIVE_INFINITY : 2 ** (f.lowestExponent + first);
    return { min, max, least };
  }
}

/** `x[0, 3]`, or the label of what has no name. */
export function nameOf(subject: Subject): string {
  return subject.label ?? subject.expression;
}
