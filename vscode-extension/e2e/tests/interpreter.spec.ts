/** Beside the Python extension: its interpreter, unless opstep.python names another. */

import { chmod } from "node:fs/promises";
import { join } from "node:path";
import type { Folder } from "../lib/folder";
import { HERE, python } from "../lib/paths";
import { expect, test } from "../lib/test";

test.use({
  extensions: [join(HERE, "python-extension")],
  settings: { "opstep.python": "" },
});

/** Starts the tests' Python, and keeps the names under which it was asked for a debugger. */
async function makePython(folder: Folder, name: string): Promise<string> {
  const text = `#!/bin/sh
case "$*" in *" dap"*|*/debugpy/*) echo ${name} >> "${folder.at("started")}";; esac
exec ${python()} "$@"
`;
  await folder.write(`${name}/bin/python`, text);
  await chmod(folder.at(`${name}/bin/python`), 0o755);
  return folder.at(`${name}/bin/python`);
}

test("runs scripts in the Python extension's interpreter, and in that of opstep.python", async ({
  closed: workbench,
}) => {
  const { debug, folder } = workbench;
  const started = async () => (await folder.read("started")).trim().split("\n");
  await folder.write("hello.py", "import sys\nprint('from', sys.argv[0])\n");
  await folder.settings({ "python.defaultInterpreterPath": await makePython(folder, "chosen") });
  await workbench.open();
  await workbench.openFile("hello.py");
  await debug.setBreakpoint(2);
  await debug.pressF5();
  await debug.expectStoppedAt(2);
  await debug.stop();
  expect(new Set(await started())).toEqual(new Set(["chosen"]));

  await makePython(folder, "own");
  await folder.settings({ "opstep.python": "${workspaceFolder}/own/bin/python" });
  await folder.delete("started");
  await expect(async () => {
    await workbench.focusEditor();
    await debug.pressF5();
    await debug.expectStoppedAt(2);
    await debug.stop();
    expect((await started()).at(-1)).toBe("own");
  }).toPass();
});

test("an interpreter that is selected is kept without a path of this machine", async ({
  closed: workbench,
}) => {
  const { folder, page } = workbench;
  await makePython(folder, ".venv");
  await workbench.open();
  await workbench.openFile("small.opg");
  await workbench.command("opstep: Select Python Interpreter");
  const own = workbench.quickRows().filter({ hasText: folder.at(".venv/bin/python") });
  await own.first().click();
  await expect
    .poll(() => folder.read(".vscode/settings.json").catch(() => ""))
    .toContain('"opstep.python": "${workspaceFolder}/.venv/bin/python"');
  await workbench.command("opstep: Select Python Interpreter");
  await expect(workbench.quickRows().filter({ hasText: "Detect" })).toBeVisible();
  await page.keyboard.type("/nowhere/bin/python");
  await workbench.press("Enter");
  await expect(workbench.notification("/nowhere/bin/python")).toBeVisible();
  expect(await folder.read(".vscode/settings.json")).not.toContain("/bin/python");
});
