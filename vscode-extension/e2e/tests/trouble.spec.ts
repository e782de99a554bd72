import { chmod } from "node:fs/promises";

import { SMALL } from "../lib/configurations";
import { python } from "../lib/paths";
import { expect, test } from "../lib/test";

test("a Python that is not there, or lacks opstep: what to do is said once, until it is", async ({
  closed,
}) => {
  const { folder, page } = closed;
  await folder.settings({ "opstep.python": "/nowhere/python" });
  await closed.open();
  await closed.openFile("small.opg", false);
  await expect(
    closed.notification("/nowhere/python (setting opstep.python) does not exist."),
  ).toHaveCount(1);
  await closed.expectReady();
  // What was said goes away once there is a Python.
  await folder.settings({ "opstep.python": python() });
  await expect(closed.notification("does not exist")).toHaveCount(0);
  await expect(page.locator(".codelens-decoration a").first()).toBeVisible();
  // Another is chosen that lacks something: what to install.
  await folder.settings({ "opstep.python": "/usr/bin/python3" });
  await expect(closed.notification(/opstep (is not installed in|needs Python)/)).toHaveCount(1);
});

test("a language server that is killed is started again, and it goes on", async ({
  workbench,
  server,
}) => {
  const { page } = workbench;
  const find = () =>
    server
      .processes()
      .filter((p) => / lsp\b/.test(p.command) && /python/.test(p.command))
      .map(({ pid }) => pid);
  await workbench.openFile("small.opg");
  // That of a window which another test has closed may still be on its way out.
  await expect.poll(() => find().length).toBe(1);
  const [before] = find();
  process.kill(before, "SIGKILL");
  await expect.poll(() => find().some((pid) => pid !== before)).toBe(true);
  await workbench.goTo(5, "  positive = re".length + 1);
  await workbench.expectHover("max(x, 0)");
  await expect(
    page.locator(".notification-list-item.error, .notification-list-item .codicon-error"),
  ).toHaveCount(0);
});

test("a language server that ends as often as it is started is given up, and that is said once", async ({
  closed,
}) => {
  const { folder } = closed;
  // Answers what Python it is, counts the starts of a server, and ends.
  await folder.write(
    "python",
    `#!/bin/sh
case "$*" in *" lsp"*) echo start >> "$(dirname "$0")/starts"; exit 1;; esac
exec ${python()} "$@"
`,
  );
  await chmod(folder.at("python"), 0o755);
  await folder.launch({ ...SMALL, stopOnEntry: true });
  await folder.settings({ "opstep.python": folder.at("python") });
  await closed.open();
  await closed.openFile("small.opg", false);
  const said = closed.notification("crashed several times and will not be restarted");
  await expect(said).toHaveCount(1);
  const starts = await folder.read("starts");
  expect(starts.split("\n").length - 1).toBe(5);
  // The debugger is there all the same.
  await closed.focusEditor();
  await closed.debug.pressF5();
  await closed.debug.expectStoppedAt(4);
  await closed.debug.stop();
  await expect(said).toHaveCount(1);
  expect(await folder.read("starts")).toBe(starts);
});

test("a file that is deleted while it is debugged", async ({ workbench }) => {
  const { debug, folder } = workbench;
  await debug.enter(SMALL, 4);
  await folder.delete("small.opg");
  await debug.next();
  await debug.expectStoppedAt(5);
  await workbench.command("opstep: Reload File in Debugger");
  await expect(
    workbench
      .notification(/small\.opg/)
      .or((await debug.console()).filter({ hasText: "small.opg" }))
      .first(),
  ).toBeVisible();
  await debug.next();
  await debug.expectStoppedAt(6);
  await debug.stop();
});
