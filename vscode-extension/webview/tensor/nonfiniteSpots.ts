/** A thinned-out picture may miss the elements that matter most: their positions are fetched. */

import { roleOf } from "../../shared/tensor/axes";
import { type Part, partExpression } from "../../shared/tensor/parts";
import type { Connection } from "./connection";
import type { Model } from "./model";
import type { Spot } from "./tiles";

const MOST = 2000; // elements that are marked

/** Where the elements of a part are that are not finite, also those that are left out of it. */
export async function nonFiniteSpots(
  model: Model,
  connection: Connection,
  part: Part,
): Promise<Spot[]> {
  if (!model.isFloat) {
    return [];
  }
  const step = { ...part, rows: { ...part.rows, step: 1 }, columns: { ...part.columns, step: 1 } };
  const of = partExpression(model.subject.expression, model.shape, step);
  const mask = (x: string) => `not isfinite(${x})`;
  const slice = await connection.call("slice", model.placesOf("any", of, mask, [0, MOST]));
  const found = model.elements(slice).numbers;
  const { axes } = model;
  const seen = axes.at.map((_, k) => k).filter((k) => roleOf(axes, k));
  const at = (k: number, axis: number, from: number) =>
    axis < 0 ? 0 : from + (found[k + seen.indexOf(axis)] as number);
  const spots: Spot[] = [];
  for (let k = 0; seen.length && k < found.length; k += seen.length) {
    spots.push({
      tile: at(k, axes.tiles, part.tiles.from),
      row: at(k, axes.rows, part.rows.from),
      column: at(k, axes.columns, part.columns.from),
    });
  }
  return spots;
}
