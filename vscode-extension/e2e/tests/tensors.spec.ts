import type { FrameLocator } from "@playwright/test";

import { expect, test } from "../lib/test";
import type { Workbench } from "../lib/workbench";

/** 0 to 59 in three rows of twenty, doubled, moved below 0, and the logarithm of that. */
const RAMP = `graph main(x: f32[3, 20]) -> f32[3, 20] {
  y = mul(x, 2.0)
  z = sub(y, 3.0)
  l = log(z)
  m = mul(l, 2.0)
  return m
}
`;

/** What a value is painted as, from black to white. */
function grey(value: number, low: number, high: number): number {
  return Math.round(Math.min(1, Math.max(0, (value - low) / (high - low))) * 255);
}

async function stopped(workbench: Workbench): Promise<void> {
  const { debug, folder } = workbench;
  await folder.write("ramp.opg", RAMP);
  const x = [0, 1, 2].map((row) => Array.from({ length: 20 }, (_, k) => row * 20 + k));
  await debug.enter({ program: "${workspaceFolder}/ramp.opg", inputs: { x } }, 2);
}

async function openTensor(workbench: Workbench, expression: string): Promise<FrameLocator> {
  await workbench.command("opstep: Open Tensor…");
  await workbench.answer(expression);
  const view = await workbench.webview(".panes");
  await expect(view.locator(".panes")).toHaveAttribute("data-drawn", /./);
  return view;
}

/** The colour in the middle of an element, read from the canvas. */
async function pixels(view: FrameLocator): Promise<number[][]> {
  return view
    .locator(".panes canvas")
    .first()
    .evaluate((node) => {
      const canvas = node as HTMLCanvasElement;
      const g = canvas.getContext("2d") as CanvasRenderingContext2D;
      const dpr = window.devicePixelRatio;
      const left = Math.round(46 * dpr);
      const top = Math.round(20 * dpr);
      const scale = Math.min(
        96,
        Math.floor(Math.min((canvas.width - left) / 20, (canvas.height - top) / 3)),
      );
      const found: number[][] = [];
      for (let row = 0; row < 3; row++) {
        for (let column = 0; column < 20; column++) {
          const x = left + Math.floor((column + 0.5) * scale);
          const y = top + Math.floor((row + 0.8) * scale);
          found.push(Array.from(g.getImageData(x, y, 1, 1).data));
        }
      }
      return found;
    });
}

test("what is drawn is what the values say, and follows each step", async ({ workbench, page }) => {
  const { debug } = workbench;
  await stopped(workbench);
  await debug.next();
  await debug.expectStoppedAt(3);
  const view = await openTensor(workbench, "y");
  await expect(view.locator(".type")).toHaveText("f32[3, 20]");
  const options = view.getByRole("button", { name: "Options" });
  if ((await options.getAttribute("aria-expanded")) === "false") await options.click();
  await view.getByLabel("colours").selectOption("grey");
  await expect
    .poll(async () => (await pixels(view)).map((p) => p[0]))
    .toEqual(Array.from({ length: 60 }, (_, k) => grey(2 * k, 0, 118)));

  const another = view.getByLabel("Expression", { exact: true });
  await another.fill("z");
  await another.press("Enter");
  await expect(view.locator(".trouble")).toContainText("there is no z here");
  await page.locator(".editor-instance .view-lines").first().click();
  await debug.next();
  await debug.expectStoppedAt(4);
  await expect(view.locator(".figures")).toContainText("min -3");
  await view.getByLabel("colours").selectOption("grey");
  await expect
    .poll(async () => (await pixels(view)).map((p) => p[0]))
    .toEqual(Array.from({ length: 60 }, (_, k) => grey(2 * k - 3, -3, 115)));
  await view.getByRole("tab", { name: "Table" }).click();
  await expect(view.getByRole("gridcell").nth(3)).toHaveText("3.0");
  await view.getByRole("gridcell").nth(3).dblclick();
  await view.getByLabel("New value").fill("inf");
  await view.getByLabel("New value").press("Enter");
  await expect(view.getByRole("gridcell").nth(3)).toHaveText("inf");
  await expect(view.getByRole("button", { name: "Next +Inf" })).toContainText("1");
  await debug.stop();
});

test("a NaN stops where it is born; its report says why, and leads to the element that it blames", async ({
  workbench,
  page,
}) => {
  const { debug } = workbench;
  await stopped(workbench);
  await debug.view();
  await debug.filter("NaN, only where it is born", true);
  await debug.pressF5();
  await debug.expectStoppedAt(4);
  const widget = page.locator(".exception-widget");
  await expect(widget).toContainText("NaN");
  await expect(widget).toContainText("l, the result of log");
  const report = await workbench.webview(".chain");
  await expect(report.locator(".why")).toContainText(
    "2 NaNs of l were born in this op, log: log of a negative number.",
  );
  await report.getByRole("button", { name: "z[0, 1]" }).click();
  const view = await workbench.webview(".panes");
  await expect(view.locator(".hover")).toHaveText("[0, 1] = -1.0");
  await debug.stop();
});
