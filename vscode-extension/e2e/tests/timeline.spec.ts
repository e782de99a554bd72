import { execFileSync } from "node:child_process";

import { ENTROPY } from "../lib/configurations";
import { python } from "../lib/paths";
import { expect, test } from "../lib/test";

test("a slice that is selected in Perfetto shows its line, also when the text has moved", async ({
  workbench,
}) => {
  const { folder } = workbench;
  test.slow(); // Perfetto's engine is compiled by the browser first
  const sizes = ["--input", "random", "--symbol", "N=4", "--symbol", "K=5", "--steps", "3"];
  const trace = ["--trace", "run.pftrace"];
  execFileSync(python(), ["-m", "opstep", "run", "entropy.opg", ...sizes, ...trace], {
    cwd: folder.path, // the trace names the file as it was given: relative
  });
  await folder.write("entropy.opg", `# A line more.\n${await folder.read("entropy.opg")}`);
  await workbench.openFile("entropy.opg");
  await workbench.command("opstep: Open Timeline");
  await workbench.quickRows().filter({ hasText: "run.pftrace" }).click();
  const view = await workbench.webview("iframe");
  await expect(view.getByRole("status")).toBeHidden({ timeout: 120_000 });
  const perfetto = view.frameLocator("iframe");

  // Perfetto's own search selects what it finds.
  const search = perfetto.getByPlaceholder(/Search/);
  await search.fill("lg = log");
  const details = perfetto.locator(".pf-details-shell, .pf-drawer-panel").first();
  await expect(async () => {
    await search.press("Enter"); // goes to what was found so far, which at first is nothing
    await expect(details).toContainText("lg = log", { timeout: 3_000 });
  }).toPass();
  await workbench.tab("entropy.opg").click();
  await expect(workbench.status(/Ln 12/)).toBeVisible();

  // And back: the slices of a line, one after the other.
  await workbench.goTo(5);
  await workbench.command("opstep: Show in Timeline");
  const row = view.getByRole("status");
  await expect(row).toContainText("p = softmax · 1 of 3 · step 0");
  await view.getByRole("button", { name: /Next slice/ }).click();
  await expect(row).toContainText("2 of 3 · step 1");
});

test("a file that is no timeline says so", async ({ workbench }) => {
  const { folder } = workbench;
  await folder.write("bad.pftrace", "this is not a trace");
  await workbench.openFile("entropy.opg");
  await workbench.openOther("bad.pftrace");
  const view = await workbench.webview("header button");
  await expect(view.getByRole("status")).toContainText("is not a Perfetto trace");
  await expect(view.getByRole("button", { name: /Reload/ })).toBeVisible();
});

test("a run that writes a timeline offers it when it has ended", async ({ workbench }) => {
  const { debug } = workbench;
  await debug.configure({ ...ENTROPY, trace: "run.pftrace" });
  await workbench.openFile("entropy.opg");
  await workbench.press("Control+F5");
  const said = workbench.notification("Wrote run.pftrace").first();
  await expect(said).toBeVisible();
  await said.getByRole("button", { name: "Open Timeline" }).click();
  await expect(workbench.tab("run.pftrace")).toBeVisible();
  await workbench.webview("iframe"); // what it shows is another test's
});
