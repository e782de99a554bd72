import { describe, expect, it } from "vitest";
import {
  exampleOf,
  findInputs,
  findParams,
  parseSizes,
  toOptions,
  unboundSymbols,
} from "../../src/debug/arguments";
import { type GraphHead, readProgram } from "../../src/debug/graphs";

const PROGRAM = readProgram(
  "param w: f32[1]\ngraph main(images: f32[N, K], scale: f32[]) -> f32[N] {\n}\n",
);
const MAIN = PROGRAM.graphs[0] as GraphHead;

describe("inputs beside a program", () => {
  const npz = (name: string, ...keys: string[]) => ({ name, keys });

  it("are random where there is no file", () => {
    expect(findInputs(MAIN, "lenet", [{ name: "other.npy" }, npz("a.npz", "b")])).toBe("random");
    expect(findInputs({ ...MAIN, inputs: [] }, "lenet", [])).toBeUndefined();
  });

  it.each([
    [[{ name: "images.npy" }], "images.npy"],
    [[{ name: "images.npy" }, { name: "lenet.images.npy" }], "lenet.images.npy"],
    [[npz("digits.npz", "labels", "test_images")], "digits.npz:test_images"],
    [[npz("a.npz", "test_images"), npz("b.npz", "images")], "b.npz:images"],
    [[npz("a.npz", "images"), npz("lenet.npz", "images")], "lenet.npz:images"],
  ])("%j", (files, source) => {
    expect(findInputs(MAIN, "lenet", files)).toEqual({ images: source, scale: "random" });
  });

  it("bring weights of the program's own name, where it has params", () => {
    const files = [{ name: "lenet.safetensors" }];
    expect(findParams(PROGRAM, "lenet", files)).toBe("lenet.safetensors");
    expect(findParams(PROGRAM, "other", files)).toBeUndefined();
    expect(findParams({ ...PROGRAM, hasParams: false }, "lenet", files)).toBeUndefined();
  });
});

describe("open symbols", () => {
  it.each([
    [{}, ["N", "K"]],
    [{ inputs: "random" }, ["N", "K"]],
    [{ inputs: { images: "random" }, symbols: { N: 3 } }, ["K"]],
    [{ symbols: ["N=3", "K = 4"] }, []],
    [{ inputs: { images: "x.npy" } }, []],
    [{ inputs: { images: "data.npz:test" } }, []],
    [{ inputs: { images: [[1, 2]] } }, []],
    [{ inputs: { images: 0.5 } }, ["N", "K"]],
    [{ inputs: ["images=x.safetensors:a", "random"] }, []],
    [{ inputs: "images=x.npy" }, []],
    [{ inputs: ["scale=x.npy"] }, ["N", "K"]],
  ])("%j", (given, open) => {
    expect(unboundSymbols(MAIN, given)).toEqual(open);
  });
});

it("the question for sizes has an example of the graph itself", () => {
  expect(exampleOf(MAIN, ["K"])).toBe(": K of images: f32[N, K]");
  expect(exampleOf({ ...MAIN, inputs: [] }, ["K"])).toBe("");
});

describe("sizes", () => {
  it.each([
    ["N=4, K=5", { N: 4, K: 5 }],
    ["K=5 N=4", { N: 4, K: 5 }],
    ["N=4;K=0", { N: 4, K: 0 }],
  ])("%s", (text, sizes) => {
    expect(parseSizes(text, ["N", "K"])).toEqual(sizes);
  });

  it("may be a number alone where one is wanted", () => {
    expect(parseSizes(" 32 ", ["N"])).toEqual({ N: 32 });
  });

  it.each([
    ["N=4", "no size for K"],
    ["N=4, M=3", "the graph has no dimension M; wanted: N, K"],
    ["N=four, K=1", "N=four: write N=4, K=5"],
    ["N=-1, K=1", "N=-1: write N=4, K=5"],
    ["7", "7: write N=4, K=5"],
    ["", "no size for N, K"],
  ])("%j is refused: %s", (text, message) => {
    expect(() => parseSizes(text, ["N", "K"])).toThrow(message);
  });
});

it("says the same in the words of the command line", () => {
  expect(
    toOptions({
      inputs: { x: "a b.npy", y: 0.5 },
      symbols: { N: 4 },
      params: "w.safetensors",
    }),
  ).toEqual([
    ...["--input", "x=a b.npy", "--input", "y=0.5"],
    ...["--symbol", "N=4", "--params", "w.safetensors"],
  ]);
  expect(toOptions({ inputs: "random" })).toEqual(["--input", "random"]);
  expect(toOptions({ symbols: ["N=4", "K=2"] })).toEqual(["--symbol", "N=4", "--symbol", "K=2"]);
  expect(toOptions({ inputs: ["x=1", "zeros"] })).toEqual(["--input", "x=1", "--input", "zeros"]);
  expect(toOptions({})).toEqual([]);
});
