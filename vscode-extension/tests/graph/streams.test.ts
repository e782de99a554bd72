/** Which streams the plan gives the lines of a graph. */

import { describe, expect, it } from "vitest";
import { streamsOf } from "../../src/graph/streams";

describe("streams of a plan", () => {
  const PLAN = `plan     main
source   two.opg

frames
  f0  main   -
  f1  block  f0   line 8
  f2  block  f0   line 9

instructions
  run     s0  @0  left = matmul(x, w)     |  b0:v0 b1:v1 -> b2:v2  |  f0 line 6
  record  s0  e0
  run     s1  @1  right = matmul(x, v)    |  b0:v0 b3:v3 -> b4:v4  |  f0 line 7
  run     s1  @2  c = conv2d(x)           |  b4:v4 -> b4:v5        |  f1 line 3
  call    s0  @3  r = while(c)            |  b4:v4 -> b4:v5        |  f2 line 3
  run     s1  @4  q = relu(c)             |  b4:v4 -> b4:v5        |  f2 line 4

plan     other

frames
  f0  other  -

instructions
  run     s0  @0  a = relu(x)             |  b0:v0 -> b2:v2        |  f0 other.opg line 20
`;

  it("are those of its lines; a call has its callee's where that is one", () => {
    expect(streamsOf(PLAN, "main")).toEqual({ 5: 0, 6: 1, 7: 1 });
    expect(streamsOf(PLAN, "block")).toEqual({ 2: 1 });
    expect(streamsOf(PLAN, "other")).toEqual({ 19: 0 });
    expect(streamsOf(PLAN, "nope")).toBeUndefined();
  });
});
