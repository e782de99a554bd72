/** What the page shows, and what it knows of it. */

import { type Axes, fitAxes } from "../../shared/tensor/axes";
import type {
  Calls,
  Comparison,
  FrameLocation,
  PlacesOf,
  Slice,
  Statistics,
  Subject,
  TensorType,
  ViewState,
} from "../../shared/tensor/messages";
import { Elements } from "./elements";
import type { Extent } from "./scaling";

const FIRST_VIEW: ViewState = {
  mode: "picture",
  firstTile: 0,
  scale: { mode: "minmax", over: "shown", low: -1, high: 1 },
  map: "viola",
  comparison: { kind: "none", count: 1, expression: "" },
  difference: "absolute",
  logCounts: false,
  exponents: false,
  bins: 64,
  statistic: "mean",
};

export class Model {
  subject: Subject = { expression: "" };
  view: ViewState = structuredClone(FIRST_VIEW);
  location: FrameLocation | undefined;
  type: TensorType | undefined;
  statistics: Statistics | undefined;
  /** What stands in the way of a picture; the last one stays, dimmed. */
  error = "";
  /** running: the run goes on; ended: there is no session any more. */
  state: "stopped" | "running" | "ended" = "running";
  axes: Axes = fitAxes(undefined, []);
  cursor: number[] | undefined;
  pins: { place: number[]; text: string; was?: string }[] = [];

  get shape(): readonly number[] {
    return this.type?.shape ?? [];
  }

  get earlier(): string | undefined {
    const { comparison } = this.view;
    return this.isPython && comparison.kind !== "expression"
      ? undefined
      : comparedExpression(this.subject.expression, comparison);
  }

  /** Takes a view that was remembered: what this version does not know of keeps its first value. */
  restoreView(view: ViewState | undefined): void {
    this.view = { ...structuredClone(FIRST_VIEW), ...view };
  }

  /** Takes a type; the axes stay where they fit. */
  setType(type: TensorType): void {
    this.type = type;
    this.axes = fitAxes(this.view.axes, type.shape);
  }

  setAxes(axes: Axes): void {
    this.axes = axes;
    this.view.axes = axes;
  }

  /** Whether its elements can be NaN or infinite. */
  get isFloat(): boolean {
    return /^b?f\d/.test(this.type?.dtype ?? "");
  }

  get isPython(): boolean {
    return this.type?.language === "python";
  }

  /** The arguments for places of elements that are not finite; `mask`: of them in a graph. */
  placesOf(
    places: PlacesOf,
    expression: string,
    mask: (x: string) => string,
    [first, count]: [number, number],
  ): Calls["slice"]["arguments"] {
    return this.isPython
      ? { expression, places, first, count }
      : { expression: `where(${mask(expression)})[${first || ""}:${first + count}]` };
  }

  /** What is typed for an element, as the session's language has it. */
  written(value: string): string {
    const text = value.trim();
    if (!this.isPython) {
      return value;
    }
    const special = /^[+-]?(?:nan|inf)$/i.test(text) ? `float("${text}")` : undefined;
    return special ?? { true: "True", false: "False" }[text] ?? value;
  }

  elements(slice: Slice): Elements {
    const unwritten = slice.dtype === this.type?.dtype ? this.type.unwritten : undefined;
    return new Elements(slice.dtype, slice.shape, slice.bytes, unwritten);
  }

  /** The extent of the whole tensor, where its figures are there. */
  get extent(): Extent | undefined {
    const f = this.statistics;
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

/** The expression that a subject is compared with; undefined for none. */
export function comparedExpression(expression: string, to: Comparison): string | undefined {
  switch (to.kind) {
    case "step":
      return `(${expression})@-${to.count}`;
    case "change":
      return `was(${expression}, ${to.count})`;
    case "expression":
      return to.expression.trim() || undefined;
    default:
      return undefined;
  }
}

/** JSON has no word for some numbers: they come as texts. */
export function numberOf(figure: number | string | undefined): number | undefined {
  if (typeof figure !== "string") {
    return figure;
  }
  return { inf: Number.POSITIVE_INFINITY, "-inf": Number.NEGATIVE_INFINITY }[figure] ?? Number.NaN;
}
