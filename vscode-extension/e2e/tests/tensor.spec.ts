import type { FrameLocator } from "@playwright/test";
import { walk } from "../lib/pictures";
import { expect, test } from "../lib/test";

// Squares of what is shown behind the op, so that roots are exact; one has none.
const ROOTS = [
  [0, 1, 2, 3],
  [4, 5, 6, 7],
  [8, 9, 10, 11],
  [12, 13, 14, 15],
];
const X = ROOTS.map((row) => row.map((r) => r * r));

/**
 * Every element that the pointer meets on a walk over the picture: what is said of it, and the colour of
 * most of its pixels (its number is written over some).
 */
async function seen(view: FrameLocator): Promise<Map<string, { text: string; rgb: number[] }>> {
  const met = new Map<string, { text: string; colours: string[] }>();
  for (const { text, rgb } of await walk(view, 24)) {
    const place = /^\[(\d+, \d+)\] = (\S+)/.exec(text);
    if (!place) continue;
    const one = met.get(place[1]) ?? { text: place[2], colours: [] };
    one.colours.push(rgb.join(","));
    met.set(place[1], one);
  }
  const often = (colours: string[]) => {
    const count = (c: string) => colours.filter((d) => d === c).length;
    return [...new Set(colours)]
      .sort((a, b) => count(b) - count(a))[0]
      .split(",")
      .map(Number);
  };
  return new Map([...met].map(([k, { text, colours }]) => [k, { text, rgb: often(colours) }]));
}

test("the Tensor view shows the right pixels, and follows the run", async ({ workbench }) => {
  const { debug } = workbench;
  const input = X.map((row) => [...row]);
  input[2][1] = -1;
  await debug.enter({ program: "${workspaceFolder}/roots.opg", inputs: { x: input } }, 3);
  await debug.ignoreTrouble();
  await debug.next();
  await debug.expectStoppedAt(4);
  const opened = workbench.page.locator("iframe.webview").first();
  await workbench.choose(await debug.variable("root"), "Open in Tensor View", opened);

  const view = await workbench.webview("canvas");
  await expect(view.locator('[aria-label="Type"]')).toHaveText("f32[4, 4]");
  await view.locator("select", { hasText: "black to white" }).selectOption("grey");
  await expect.poll(async () => (await seen(view)).get("3, 3")?.rgb).toEqual([255, 255, 255]);
  const elements = await seen(view);
  expect(elements.size).toBe(16);
  for (const [place, { text, rgb }] of elements) {
    const [row, column] = place.split(", ").map(Number);
    if (row === 2 && column === 1) {
      expect(text).toMatch(/nan/i);
      expect(rgb).toEqual([255, 0, 200]);
    } else {
      const value = ROOTS[row][column];
      expect(Number(text), place).toBe(value);
      const grey = Math.round((255 * value) / 15);
      for (const c of rgb)
        expect(Math.abs(c - grey), `${place} is ${value}`).toBeLessThanOrEqual(1);
    }
  }

  await workbench.command("opstep: Open Tensor…");
  await workbench.answer("x - 1");
  const second = await workbench.webview('[aria-label="Expression"]');
  await expect(second.locator('[aria-label="Type"]')).toHaveText("f32[4, 4]");
  await debug.stop();
});
