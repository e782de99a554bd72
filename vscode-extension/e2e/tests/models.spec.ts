/** Models of PyTorch and ONNX open with a click. */

import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { BUILD, python } from "../lib/paths";
import { expect, test } from "../lib/test";

/** Two blocks of the same class, exported to a file. */
const EXPORT = `
import sys
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.out = nn.Linear(16, 4)
    def forward(self, x):
        return self.out(self.blocks(x)).softmax(-1)

torch.export.save(torch.export.export(Net(), (torch.ones(3, 16),)), sys.argv[1])
`;

test.slow(); // PyTorch is imported

test("a model is drawn, folded by module, and all of it is searched", async ({ workbench }) => {
  const { folder, page } = workbench;
  execFileSync(python(), ["-c", EXPORT, folder.at("net.pt2")]);
  await workbench.openOther("net.pt2");
  const view = await workbench.webview("svg .nodes");
  await expect(view.locator("g.node.call")).toHaveCount(2);
  await expect(view.locator("g.node", { hasText: "relu" })).toHaveCount(0);
  if (process.env.OPSTEP_PICTURES) await workbench.screenshot(join(BUILD, "model.png"));

  // What is found in a module opens it.
  await view.locator("input.search").fill("relu");
  await expect(view.locator(".count")).toContainText("2 found");
  await expect(view.locator("g.node", { hasText: "relu" }).first()).toBeVisible();
  await view.locator("input.search").press("Enter");
  await expect(view.locator("g.node", { hasText: "relu" })).toHaveCount(2);
  if (process.env.OPSTEP_PICTURES) await workbench.screenshot(join(BUILD, "model-found.png"));
  await expect(page.locator(".tab.active")).toContainText("net.pt2");
});

test("a file that is no model: what is wrong stands in its place", async ({ workbench }) => {
  await workbench.folder.write("broken.onnx", "no model");
  await workbench.openOther("broken.onnx");
  const view = await workbench.webview("main");
  await expect(view.locator("main")).toContainText("broken.onnx");
});
