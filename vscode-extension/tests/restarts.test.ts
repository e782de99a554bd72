import { expect, it } from "vitest";
import { Restarts } from "../src/restarts";

it("starts again a few times, each a bit later, and then no more", () => {
  const restarts = new Restarts(3, 60_000, () => 0);
  expect([1, 2, 3, 4, 5].map(() => restarts.again())).toEqual([
    100,
    400,
    1600,
    undefined,
    undefined,
  ]);
});

it("forgets crashes that are long ago", () => {
  let now = 0;
  const restarts = new Restarts(1, 1000, () => now);
  expect(restarts.again()).toBe(100);
  now = 999;
  expect(restarts.again()).toBeUndefined();
  now = 5000;
  expect(restarts.again()).toBe(100);
});

it("begins anew where the user restarts", () => {
  const restarts = new Restarts(1, 1000, () => 0);
  restarts.again();
  expect(restarts.again()).toBeUndefined();
  restarts.forget();
  expect(restarts.again()).toBe(100);
});
