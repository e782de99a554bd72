/** Workspaces that are written to: when the extension looks at them again. */

import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { Services } from "../../src/services";
import type { WorkspaceStatus } from "../../src/workspace/requests";

type Listener = (event: unknown) => void;
const writes: Listener[] = [];

vi.mock("vscode", () => {
  class EventEmitter {
    private readonly listeners: Listener[] = [];
    readonly event = (listener: Listener) => {
      this.listeners.push(listener);
      return { dispose() {} };
    };
    fire(event: unknown) {
      for (const listener of this.listeners) listener(event);
    }
    dispose() {}
  }
  const ignored = () => ({ dispose() {} });
  return {
    EventEmitter,
    Disposable: { from: () => ({ dispose() {} }) },
    workspace: {
      createFileSystemWatcher: () => ({
        onDidCreate: ignored,
        onDidChange: (listener: Listener) => writes.push(listener),
        onDidDelete: ignored,
      }),
      onDidChangeWorkspaceFolders: ignored,
      findFiles: async () => [{ scheme: "file", fsPath: RUNS }],
      getConfiguration: () => ({ get: (_: string, or: unknown) => or }),
    },
  };
});

const RUNS = "/models/runs.db";
const { Files } = await import("../../src/workspace/files");

/** The files, and what was told of them; `answer` is how long the server takes. */
async function watched(answer = 0) {
  const asked: number[] = [];
  const status = (): WorkspaceStatus =>
    ({ path: RUNS, kind: "workspace", stamp: `${asked.length}`, running: 1 }) as never;
  const services = {
    context: { workspaceState: { get: (_: string, or: unknown) => or } },
    log: { info() {} },
    request: async (method: string) => {
      if (method.endsWith("find")) return { files: [status()] };
      asked.push(Date.now());
      await new Promise((resolve) => setTimeout(resolve, answer));
      return status();
    },
  } as unknown as Services;
  const files = new Files(services);
  await files.find();
  const told: unknown[] = [];
  files.onDidChange((paths) => told.push(paths));
  return { files, told, asked };
}

/** The file's log is written to every so many milliseconds. */
async function write(times: number, every: number): Promise<void> {
  for (let k = 0; k < times; k++) {
    for (const listener of writes) listener({ fsPath: `${RUNS}-wal` });
    await vi.advanceTimersByTimeAsync(every);
  }
}

beforeEach(() => {
  writes.length = 0;
  vi.useFakeTimers();
});
afterEach(() => vi.useRealTimers());

it("a file that is written to without pause is told of all the same", async () => {
  const { told, files } = await watched();
  await write(100, 20);
  expect(told.length).toBeGreaterThanOrEqual(5);
  expect(told[0]).toEqual([RUNS]);
  expect(files.get(RUNS)?.running).toBe(1);
});

it("several writes become one look, which has the last of them", async () => {
  const { asked } = await watched();
  await write(3, 5);
  await vi.advanceTimersByTimeAsync(1000);
  expect(asked).toHaveLength(1);
  await write(1, 1000);
  expect(asked).toHaveLength(2);
});

it("a server that is slow is asked once at a time, and once more for what was written meanwhile", async () => {
  const { asked } = await watched(2000);
  await write(50, 20);
  expect(asked).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(10_000);
  expect(asked).toHaveLength(2);
});
