/** Commands on the Python file in front: in the palette, the run menu and the explorer. */

import { chmod } from "node:fs/promises";
import { python } from "../lib/paths";
import { expect, test } from "../lib/test";

/** Says how the command line was called, in place of a run. */
const ECHO = `#!/bin/sh
case "$*" in *"-m opstep run"*|*"-m opstep hunt"*) shift 3; echo "called: $*"; exit 0;; esac
exec ${python()} "$@"
`;

test("they run, record, hunt and debug it, and ask for no graph", async ({ closed: workbench }) => {
  const { debug, folder, page } = workbench;
  await folder.write("echo", ECHO);
  await chmod(folder.at("echo"), 0o755);
  await folder.write("hello.py", "print('hello')\n");
  await folder.settings({ "opstep.python": folder.at("echo"), "opstep.workspace": "all.db" });
  await workbench.open();
  await workbench.openFile("hello.py");

  await workbench.command("opstep: Hunt NaN");
  await expect(debug.terminal()).toContainText("called: hunt hello.py");
  await workbench.expectTasksEnded();
  await workbench.focusEditor();
  await workbench.command("opstep: Run and Record in a Workspace…");
  await expect(debug.terminal()).toContainText("called: run --workspace all.db hello.py");
  await workbench.expectTasksEnded();

  const menu = (label: string | RegExp) =>
    page.locator(".monaco-menu .action-label").filter({ hasText: label });
  const button = page.locator(".editor-actions .monaco-dropdown-with-default");
  const input = page.locator(".quick-input-widget input.input");
  await expect(async () => {
    if (await menu("Hunt NaN").isHidden()) {
      await button.locator(".dropdown-action-container").click({ timeout: 3_000 });
    }
    await menu("Run and Record a Timeline…").click({ timeout: 3_000 });
    await expect(input).toHaveValue(/run\.pftrace$/, { timeout: 3_000 });
  }).toPass();
  await workbench.chooseFile(/run\.pftrace$/, folder.at("run.pftrace"));
  await expect(debug.terminal()).toContainText(/called: run --trace \S*run\.pftrace hello\.py/);
  await workbench.expectTasksEnded();

  const row = page.locator(".explorer-folders-view .monaco-list-row", { hasText: "hello.py" });
  const debugScript = menu("Debug Python File with opstep");
  await expect(async () => {
    if (await menu(/^opstep$/).isHidden()) await row.click({ button: "right", timeout: 3_000 });
    if (await debugScript.isHidden()) await menu(/^opstep$/).hover({ timeout: 3_000 });
    await debugScript.click({ timeout: 3_000 });
    await expect(page.locator(".monaco-menu")).toHaveCount(0, { timeout: 3_000 });
  }).toPass();
  await expect(debug.terminal()).toContainText("hello");
  await debug.expectEnded();
});
