/** The web entry: what works is said once, and each command says it again. */

import { beforeEach, expect, it, vi } from "vitest";

const commands = new Map<string, () => unknown>();
const said: string[] = [];

vi.mock("vscode", () => ({
  Disposable: { from: () => ({ dispose() {} }) },
  commands: {
    registerCommand: (name: string, act: () => unknown) => commands.set(name, act),
  },
  window: { showInformationMessage: (text: string) => said.push(text) },
}));

const { activate } = await import("../src/web");
const manifest = await import("../package.json");

/** As much of a context as the entry uses; its memory outlives a window. */
const memory = new Map<string, unknown>();
const context = () =>
  ({
    subscriptions: [],
    globalState: {
      get: (key: string) => memory.get(key),
      update: async (key: string, value: unknown) => void memory.set(key, value),
    },
    extension: { packageJSON: manifest.default },
  }) as unknown as Parameters<typeof activate>[0];

beforeEach(() => {
  said.length = 0;
  memory.clear();
});

it("says once what works", () => {
  activate(context());
  activate(context());
  expect(said).toHaveLength(1);
  expect(said[0]).toMatch(/colours and snippets work/);
});

it("has every command that the manifest names, and each says why not", () => {
  activate(context());
  said.length = 0;
  expect([...commands.keys()].sort()).toEqual(
    manifest.default.contributes.commands.map((c) => c.command).sort(),
  );
  commands.get("opstep.debug")?.();
  expect(said).toHaveLength(1);
});
