/** Counts of non-finite elements, and navigation from one to the next. */

import { messageOf } from "../../shared/errors";
import type { PlacesOf } from "../../shared/tensor/messages";
import { operand } from "../../shared/tensor/parts";
import { fill, h } from "../dom";
import { SPECIAL } from "./colours";
import { type Connection, Outdated } from "./connection";
import { formatNumber } from "./dom";
import { NAN, NEGINF, POSINF, UNWRITTEN } from "./elements";
import type { Model } from "./model";
import { pattern } from "./picture";

const MOST = 4096; // places that are fetched at a time

interface Category {
  kind: number;
  label: string;
  places: PlacesOf;
  count: number;
  /** The mask whose places they are. */
  mask: (x: string) => string;
}

interface Found {
  key: string;
  places: number[][];
  first: number;
}

export class NonFinite {
  readonly node = h("span", { class: "odd", role: "group", "aria-label": "Not finite" });
  private found: Found | undefined;
  private at = new Map<number, number>();

  constructor(
    private readonly model: Model,
    private readonly connection: Connection,
    private readonly listener: { goTo(place: number[]): void; failed(text: string): void },
  ) {}

  private get categories(): Category[] {
    const f = this.model.statistics;
    if (!f) {
      return [];
    }
    const unwritten = f.unwritten ?? 0;
    const nans = unwritten
      ? (x: string) => `isnan(${x}) and not isunwritten(${x})`
      : (x: string) => `isnan(${x})`;
    const float = this.model.type?.unwritten !== undefined;
    return [
      {
        kind: NAN,
        label: "NaN",
        places: "nan",
        count: f.nan - (float ? unwritten : 0),
        mask: nans,
      },
      {
        kind: POSINF,
        label: "+Inf",
        places: "posinf",
        count: f.posinf,
        mask: (x) => `${operand(x)} == inf`,
      },
      {
        kind: NEGINF,
        label: "−Inf",
        places: "neginf",
        count: f.neginf,
        mask: (x) => `${operand(x)} == -inf`,
      },
      {
        kind: UNWRITTEN,
        label: "never written",
        places: "any", // no session on Python has such
        count: unwritten,
        mask: (x) => `isunwritten(${x})`,
      },
    ];
  }

  /** Forgets places: the tensor is another one. */
  reset(): void {
    this.found = undefined;
    this.at.clear();
    this.update();
  }

  update(): void {
    const buttons = this.categories
      .filter((s) => s.count > 0)
      .map((s) =>
        h(
          "button",
          {
            class: "flat",
            "aria-label": `Next ${s.label}`,
            title: `To the next ${s.label} (${s.kind === NAN ? "n" : "press"})`,
            onclick: () => void this.next(s.kind),
          },
          swatch(s.kind),
          `${s.label} ${formatNumber(s.count)}`,
        ),
      );
    fill(this.node, ...buttons);
  }

  /** Goes to the next element of a kind; behind the last one to the first. */
  async next(kind: number, by = 1): Promise<void> {
    const sort = this.categories.find((s) => s.kind === kind);
    if (!sort?.count) {
      return;
    }
    const k = this.at.has(kind) ? (this.at.get(kind) as number) + by : 0;
    const at = ((k % sort.count) + sort.count) % sort.count;
    this.at.set(kind, at);
    try {
      const place = await this.indexOf(sort, at);
      if (place) {
        this.listener.goTo(place);
      }
    } catch (error) {
      if (!(error instanceof Outdated)) {
        this.listener.failed(messageOf(error));
      }
    }
  }

  private async indexOf(sort: Category, at: number): Promise<number[] | undefined> {
    const { expression } = this.model.subject;
    const first = Math.floor(at / MOST) * MOST;
    const key = `${expression} ${sort.kind} ${this.connection.turn}`;
    if (this.found?.key !== key || this.found.first !== first) {
      const rank = this.model.shape.length;
      if (!rank) {
        return [];
      }
      const slice = await this.connection.call(
        "slice",
        this.model.placesOf(sort.places, expression, sort.mask, [first, MOST]),
      );
      const numbers = this.model.elements(slice).numbers;
      const places: number[][] = [];
      for (let k = 0; k < numbers.length; k += rank) {
        places.push(Array.from(numbers.subarray(k, k + rank)));
      }
      this.found = { key, places, first };
    }
    return this.found.places[at - first];
  }
}

function swatch(kind: number): HTMLElement {
  const dpr = Math.max(1, window.devicePixelRatio || 1);
  const size = Math.round(12 * dpr);
  const canvas = h("canvas", { width: size, height: size, class: "swatch", "aria-hidden": "true" });
  const g = canvas.getContext("2d");
  if (g && SPECIAL[kind]) {
    pattern(g, kind, 0, 0, size, dpr);
  }
  return canvas;
}
