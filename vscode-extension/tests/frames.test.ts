import { expect, it } from "vitest";
import { callsOf, parseFrame, sameCall } from "../shared/frames";

it.each([
  ["main", "main", []],
  ["halve [i=3]", "halve", []],
  ["twice<f16>", "twice", []],
  ["skip1 = block", "block", ["skip1"]],
  ["down:b1/full = block", "block", ["b1", "full"]],
  ["outer:p/inner:y/z = deep<f32>", "deep", ["p", "y", "z"]],
  ["information, line 12", "information", []],
])("a frame that is called %s", (name, graph, calls) => {
  expect(parseFrame(name)).toEqual({ graph, calls });
});

it("tells calls of one graph apart, as far as the ways to them are known", () => {
  expect(sameCall(["skip1"], ["skip2"])).toBe(false);
  expect(sameCall(["b1", "full"], ["b2", "full"])).toBe(false);
  expect(sameCall(["full"], ["b2", "full"])).toBe(true);
  expect(sameCall([], ["skip1"])).toBe(true);
});

it("begins the way to a call anew in the body of a loop", () => {
  const [main, halve] = [{ call: undefined }, { call: undefined }];
  expect(callsOf([main, { call: "b1" }, { call: "full" }])).toEqual(["b1", "full"]);
  expect(callsOf([main, { call: "b1" }, halve, { call: "x" }])).toEqual(["x"]);
});
