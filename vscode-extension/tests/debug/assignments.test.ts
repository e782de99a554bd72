import { describe, expect, it } from "vitest";
import { assignedAbove } from "../../src/debug/assignments";

const TEXT = `import torch
scale = 2

class Block:
    def other(self):
        z = 1

    def forward(self, x, mask=None):
        y = self.ln(x)
        if mask == 3:
            y += mask
        q, k = self.qkv(y)
        self.seen = q
        h: Tensor = f(
            a=q,
        )
        return h
`.split("\n");

describe("names that are assigned above a line", () => {
  it("are those of its function", () => {
    const found = assignedAbove(TEXT, 16);
    expect(found.map((a) => [a.line, a.column, a.name])).toEqual([
      [7, 16, "self"],
      [7, 22, "x"],
      [7, 25, "mask"],
      [10, 12, "y"],
      [11, 8, "q"],
      [11, 11, "k"],
      [13, 8, "h"],
      [14, 12, "a"],
    ]);
  });

  it("are its arguments, however they are written", () => {
    const lines = [
      "def forward(  # (a comment",
      "    self, x: Dict[str, Tensor], /,",
      "    *rest: int, scale=(2, y), **more) -> f(z):",
      "    return x",
    ];
    expect(assignedAbove(lines, 3).map((a) => [a.line, a.column, a.name])).toEqual([
      [1, 4, "self"],
      [1, 10, "x"],
      [2, 5, "rest"],
      [2, 16, "scale"],
      [2, 32, "more"],
    ]);
  });

  it("are those of the module outside of functions", () => {
    expect(assignedAbove(TEXT, 2).map((a) => a.name)).toEqual(["scale"]);
  });
});
