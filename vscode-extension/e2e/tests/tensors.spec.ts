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

test("what is drawn is what the values say, and follows each step", async ({ workbench }) => {
  const { debug, page } = workbench;
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

  // An element that is pointed at, and pinned, moves nothing.
  const room = await view.locator("main").boundingBox();
  const canvas = view.locator(".panes canvas").first();
  await canvas.click({ position: { x: 60, y: 30 } });
  await expect(view.locator(".pins")).toContainText(/1: \[0, \d+\] = \d/);
  await expect(view.locator(".hover")).toContainText(/^\[0, \d+\] = \d/);
  expect(await view.locator("main").boundingBox()).toEqual(room);
  await view.getByLabel("Unpin 1").click();
  expect(await view.locator("main").boundingBox()).toEqual(room);

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
  const value = view.getByLabel("New value");
  await expect(async () => {
    // The first click brings the focus to the view, which on a busy machine ends what is typed into.
    if (!(await value.isVisible()))
      await view.getByRole("gridcell").nth(3).dblclick({ timeout: 3_000 });
    await value.fill("inf", { timeout: 1_000 });
    await value.press("Enter", { timeout: 1_000 });
  }).toPass();
  await expect(view.getByRole("gridcell").nth(3)).toHaveText("inf");
  await expect(view.getByRole("button", { name: "Next +Inf" })).toContainText("1");
  await debug.stop();
});

test("a NaN stops where it is born; its report says why, and leads to the element that it blames", async ({
  workbench,
}) => {
  const { debug, page } = workbench;
  await stopped(workbench);
  await debug.view();
  await debug.pressF5();
  await debug.expectStoppedAt(4);
  const widget = page.locator(".exception-widget");
  await expect(widget).toContainText("NaN");
  await expect(widget).toContainText("l, the result of log");
  const report = await workbench.webview(".chain");
  await expect(report.locator(".why")).toContainText(
    "2 NaNs of l were born in this op, log: log of a negative number.",
  );
  await expect(report.locator(".here")).toBeVisible();
  await report.getByRole("button", { name: "z[0, 1]" }).click();
  // A table where that is what z was shown as last.
  const view = await workbench.webview('[aria-label="Expression"]');
  await expect(view.locator(".hover")).toHaveText("[0, 1] = -1.0");

  // A value that is set makes the report anew.
  await debug.evaluate("z = abs(z)");
  const anew = await workbench.webview(".why");
  await expect(anew.locator("h1")).toHaveText("l is finite now");
  await expect(workbench.editor().locator(".squiggly-warning")).toHaveCount(0);
  await debug.stop();
});

test("Hunt NaN, a run, and a run's end lead to one report, and from it into the debugger", async ({
  workbench,
}) => {
  const { debug, folder, page } = workbench;
  const lens = (title: string) =>
    workbench.editor().locator(".codelens-decoration a", { hasText: title }).first();
  const name = folder.unused("entropy.opg");
  await folder.write(name, await folder.read("entropy.opg"));
  await workbench.openFile(name);
  await workbench.answer("N=4, K=5", lens("Hunt NaN"));
  const report = await workbench.webview(".places");
  await expect(report.locator("h1")).toHaveText("Why mean is not finite");
  await expect(report.locator(".why")).toHaveText(
    "7 infinities of lg were born in log, line 11: log of 0.",
  );
  await expect(report.locator(".kind")).toHaveText(["born here", "follows from lg"]);
  await expect(workbench.editor().locator(".squiggly-warning")).toHaveCount(2);

  // From the Problem to where the second was born.
  await workbench.focusEditor();
  await workbench.goTo(12, 3);
  await workbench.fix("Debug There");
  await debug.expectStoppedAt(12);
  await expect(workbench.status("stepping graph information")).toBeVisible();
  const chain = await workbench.webview(".chain");
  await expect(chain.locator(".why")).toContainText("7 NaNs of h were born in this op");
  await chain.getByRole("button", { name: "Debug there" }).click();
  await debug.expectStoppedAt(11);

  // At the end the result is traced back.
  await debug.ignoreTrouble();
  await workbench.focusEditor();
  await expect(chain.locator(".here")).toBeVisible();
  await debug.next();
  await debug.expectStoppedAt(12);
  await expect(chain.locator(".here")).toBeHidden();
  await expect(chain.getByRole("button", { name: "Debug there" })).toBeVisible();
  await debug.pressF5();
  await debug.expectStoppedAt(7);
  await expect(chain.locator("h1")).toHaveText("Why mean is not finite");
  await expect(chain.locator(".link.origin")).toHaveCount(2);
  await debug.stop();

  await workbench.focusEditor();
  await lens("Run").click();
  const again = await workbench.webview(".places");
  await expect(again.locator(".why")).toContainText("7 infinities of lg");
  await expect(page.getByText(/exit code/)).toHaveCount(0);
});
