import { expect, it } from "vitest";
import { counted, duration, grouped, significant } from "../shared/format";

it("groups digits and knows the plural", () => {
  expect([grouped(1234567), counted(1, "row"), counted(1234, "row")]).toEqual([
    "1,234,567",
    "1 row",
    "1,234 rows",
  ]);
  expect(counted(2, "infinity", "infinities")).toBe("2 infinities");
});

it("rounds to significant digits", () => {
  expect([significant(1 / 3, 9), significant(1234.5, 3), significant(2, 6)]).toEqual([
    "0.333333333",
    "1230",
    "2",
  ]);
});

it.each([
  [999e-9, "999 ns"],
  [1e-6, "1 µs"],
  [8573e-9, "8.57 µs"],
  [0.0123, "12.3 ms"],
  [2.5, "2.5 s"],
  [59, "59 s"],
  [61, "1 min 1 s"],
  [7260, "2 h 1 min"],
])("writes %d seconds in a handy unit", (seconds, text) => {
  expect(duration(seconds)).toBe(text);
});
