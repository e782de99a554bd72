/** The values of a stopped frame, as the debugger tells them (`opstep/values`). */

import type { FrameValues } from "../../shared/values/messages";
import type { Stop } from "../services";

const PAGE = 1000; // rows of one answer: a step that comes in between waits for no more

/** All values, a page at a time, for as long as `wanted`. Rejects where the run has gone on. */
export async function allValuesOf(stop: Stop, wanted: () => boolean): Promise<FrameValues> {
  const frame = await valuesOf(stop, { count: PAGE });
  for (let start = PAGE; start < frame.total && wanted(); start += PAGE) {
    const { values } = await valuesOf(stop, { start, count: PAGE });
    if (values.length === 0) {
      break;
    }
    frame.values.push(...values);
  }
  return frame;
}

/** Rejects where the run has gone on meanwhile. */
export async function valuesOf(
  stop: Stop,
  of: { names?: string[]; most?: number; start?: number; count?: number } = {},
): Promise<FrameValues> {
  return (await stop.session.customRequest("opstep/values", {
    frameId: stop.frameId,
    ...of,
  })) as FrameValues;
}
