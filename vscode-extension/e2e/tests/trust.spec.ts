import { expect, test } from "../lib/test";

test.use({
  settings: {
    "security.workspace.trust.enabled": true,
    "security.workspace.trust.startupPrompt": "never",
  },
});

test("in a folder that is not trusted nothing runs", async ({ closed, server }) => {
  const { folder } = closed;
  await folder.settings({ "opstep.python": "./evil" });
  await folder.write("evil", '#!/bin/sh\ntouch "$(dirname "$0")/ran"\n');
  await closed.open();
  await closed.openFile("small.opg", false);
  await expect(closed.status("Restricted Mode")).toBeVisible();
  await closed.debug.pressF5();
  expect(
    server.processes().filter((p) => /opstep/.test(p.command) && / (lsp|dap)\b/.test(p.command)),
  ).toEqual([]);
  await expect(folder.read("ran")).rejects.toThrow();
  expect(closed.console.join("\n")).not.toContain("opstep dap");
});
