import { expect, test } from "vitest";
import { axisTicks } from "../../webview/tensor/ticks";

test.each([
  [0, 1, 6, [0, 0.2, 0.4, 0.6, 0.8, 1]],
  [-80.03, 0, 4, [-80.03, -50, 0]],
  [-0.09619, 0, 5, [-0.09619, -0.08, -0.06, -0.04, -0.02, 0]],
  [0, 0.3, 1, [0, 0.3]],
  [2, 2, 6, [2]],
])("from %d to %d at most %i round numbers stand between both ends", (low, high, count, ticks) => {
  expect(axisTicks(low, high, count)).toEqual(ticks);
});
