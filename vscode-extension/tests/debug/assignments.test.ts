import { describe, expect, it } from "vitest";
import { assignedAbove, valuesByTrouble } from "../../src/debug/assignments";

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

describe("values at the ends of lines", () => {
  const at = (line: number, text: string) => ({ line, column: 4, name: "h", text });
  const red = (text: string) => `\u001b[91m${text}\u001b[0m`;

  it("are apart where they are not finite, and lose the debugger's colours", () => {
    const values = [
      at(1, "x = f32[3]  mean 1"),
      at(2, `h = ${red("7 NaN of 20")}, mean of the rest ${red("inf")}`),
      at(3, "inf = 3"),
    ];
    expect(valuesByTrouble(values, false)).toEqual([values[0], values[2]]);
    expect(valuesByTrouble(values, true)).toEqual([at(2, "h = 7 NaN of 20, mean of the rest inf")]);
  });

  it("are no longer than a line", () => {
    const [value] = valuesByTrouble([at(1, `h = ${"1, ".repeat(100)}`)], false);
    expect(value?.text).toHaveLength(110);
    expect(value?.text.endsWith("…")).toBe(true);
    const [module] = valuesByTrouble([at(1, "net = Net(\n  (out): Linear()\n)")], false);
    expect(module?.text).toBe("net = Net(…");
  });
});
