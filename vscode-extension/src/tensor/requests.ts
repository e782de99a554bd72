/** Calls of the Tensor view's page as requests of the debug adapter or the language server. */

import { type Axes, fitAxes, MOST_TILES, sizeOf } from "../../shared/tensor/axes";
import type { Call, Calls, Slice, TensorType, ViewState } from "../../shared/tensor/messages";
import { elementsOf, type Part, partExpression, wholePart } from "../../shared/tensor/parts";

/** Sends a request of a debug session. */
export type SendRequest = (command: string, args: Record<string, unknown>) => Promise<unknown>;

/** The frame in which expressions are read, and what `value` is in them. */
export interface Target {
  frameId: number;
  memoryReference?: string;
}

/** Elements of the picture that is asked for before the page says what it has room for. */
const FIRST_ELEMENTS = 1 << 16;

/** Sends a call of the page; its answer is what the page gets. Saving files is not among them. */
export async function call<C extends Exclude<Call, "save">>(
  send: SendRequest,
  target: Target,
  name: C,
  args: Calls[C]["arguments"],
): Promise<Calls[C]["answer"]> {
  const at = { ...target, ...args };
  switch (name as Exclude<Call, "save">) {
    case "slice":
      return decodeSlice(await send("opstep/tensorSlice", at));
    case "type":
      return (await send("opstep/tensorType", at)) as Calls[C]["answer"];
    case "statistics":
      return (await send("opstep/statistics", at)) as Calls[C]["answer"];
    case "histogram":
      return (await send("opstep/histogram", at)) as Calls[C]["answer"];
    case "history":
      return (await send("opstep/statisticsHistory", at)) as Calls[C]["answer"];
    case "set":
      return (await send("setExpression", at)) as Calls[C]["answer"];
    default:
      throw new Error(`${name} is not a request of the debugger`);
  }
}

function decodeSlice(body: unknown): Slice {
  const { data, ...rest } = body as Omit<Slice, "bytes"> & { data: string };
  return { ...rest, bytes: new Uint8Array(Buffer.from(data, "base64")) };
}

/**
 * A tensor's type and the part of its first picture, thinned out to a quick one. A shape that is
 * guessed right spares waiting for the type.
 */
export async function openTensor(
  send: SendRequest,
  target: Target,
  expression: string,
  view: ViewState | undefined,
  guess?: readonly number[],
): Promise<{ type: TensorType; first?: { part: Part; slice: Slice } }> {
  const typed = call(send, target, "type", { expression });
  if ((view?.mode ?? "picture") !== "picture") {
    return { type: await typed };
  }
  const fetch = async (shape: readonly number[]) => {
    const part = firstPart(fitAxes(view?.axes, shape), shape, view?.firstTile ?? 0);
    const of = partExpression(expression, shape, part);
    return { part, slice: await call(send, target, "slice", { expression: of }) };
  };
  const guessed = guess && fetch(guess).catch(() => undefined);
  const type = await typed;
  const right = guessed && String(guess) === String(type.shape) ? await guessed : undefined;
  return { type, first: right ?? (await fetch(type.shape)) };
}

/** All that axes show, thinned until it is quick to send. */
export function firstPart(axes: Axes, shape: readonly number[], firstTile: number): Part {
  const tiles = sizeOf(shape, axes.tiles);
  const from = Math.max(0, Math.min(firstTile, tiles - 1));
  for (let step = 1; ; step++) {
    const part = wholePart(axes, shape, step);
    part.tiles = { from, to: Math.min(tiles, from + MOST_TILES), step: 1 };
    const least = step >= Math.max(sizeOf(shape, axes.rows), sizeOf(shape, axes.columns));
    if (elementsOf(part) <= FIRST_ELEMENTS || least) {
      return part;
    }
  }
}
