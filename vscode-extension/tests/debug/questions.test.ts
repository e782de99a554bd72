/** Questions about a stop: which kernel, and what becomes of them when the run goes on. */

import { describe, expect, it, vi } from "vitest";
import type { CancellationToken, DebugSession } from "vscode";
import { choicesOf } from "../../src/debug/kernels";
import { whileStopped } from "../../src/debug/questions";
import type { Stop } from "../../src/services";

vi.mock("vscode", () => ({
  QuickPickItemKind: { Separator: -1 },
  CancellationTokenSource: class {
    token = { isCancellationRequested: false };
    cancel() {
      this.token.isCancellationRequested = true;
    }
    dispose() {}
  },
}));

describe("which kernel", () => {
  const cpu = { label: "kernel relu on the CPU, work item 0", function: "loop", launch: 0 };
  const gpu = { label: "kernel relu, block (0,0,0), thread (0,0,0)", function: "k", launch: 0 };

  it("is what the session runs on first, and Enter asks nothing more", async () => {
    const found = choicesOf([
      { ...cpu, target: "cpu", units: 4 },
      { ...gpu, target: "cuda", grid: [1, 1, 1], block: [256, 1, 1] },
    ]);
    expect(found.map(({ label }) => label)).toEqual([
      "as the CPU runs it",
      cpu.label,
      "another work item…",
      "as a GPU runs it, simulated",
      gpu.label,
      "the thread that writes a given element…",
      "another block and thread…",
    ]);
    expect(found[1]?.kernel?.target).toBe("cpu");
    expect(await found[1]?.place?.({} as CancellationToken)).toEqual({});
  });

  it("cannot be one that has an obstacle", () => {
    const found = choicesOf([{ ...cpu, target: "cpu", units: 1, obstacle: "it is compiled" }]);
    expect(found[1]).toEqual({ label: cpu.label, description: "$(circle-slash) it is compiled" });
  });
});

describe("a question about a stop", () => {
  const session = { id: "1" } as DebugSession;
  const stop = { session, frameId: 7 } as Stop;

  async function asked(next: Stop | undefined): Promise<boolean> {
    let tell: (now: Stop | undefined) => void = () => {};
    const onStop = (listener: typeof tell) => {
      tell = listener;
      return { dispose() {} };
    };
    return whileStopped({ onStop }, stop, async (gone) => {
      tell(next);
      return gone.isCancellationRequested;
    });
  }

  it("closes when the run goes on or another frame is chosen, not when a value was set", async () => {
    expect(await asked(undefined)).toBe(true);
    expect(await asked({ ...stop, frameId: 8 })).toBe(true);
    expect(await asked({ ...stop })).toBe(false);
  });
});
