import { describe, expect, it } from "vitest";
import { compareVersions } from "../src/versions";

describe("compareVersions", () => {
  it.each([
    ["3.11", "3.11.0", 0],
    ["3.9.18", "3.11", -1],
    ["3.12.1", "3.11", 1],
    ["0.10.0", "0.9.9", 1],
    ["0.2.0rc1", "0.2.0", -1],
    ["0.2.0.dev3+g12ab", "0.2.0", -1],
    ["0.2.0", "0.2.0b1", 1],
    ["0.2.0+local", "0.2.0", 0],
    ["v1.2", "1.2.0", 0],
    ["garbage", "0.0.1", -1],
  ])("%s against %s", (a, b, sign) => {
    expect(Math.sign(compareVersions(a, b))).toBe(sign);
    expect(Math.sign(compareVersions(b, a)) + sign).toBe(0);
  });
});
