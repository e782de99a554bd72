/** A debugger that ends: what the session and the user are told. */

import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import type { DebugProtocol } from "@vscode/debugprotocol";
import { describe, expect, it, vi } from "vitest";

vi.mock("vscode", () => ({
  EventEmitter: class {
    private readonly listeners: ((message: unknown) => void)[] = [];
    readonly event = (listener: (message: unknown) => void) => {
      this.listeners.push(listener);
    };
    fire(message: unknown) {
      for (const listener of this.listeners) {
        listener(message);
      }
    }
    dispose() {}
  },
}));

// The streams are those of its own package, which asks for nothing of VS Code.
vi.mock("vscode-languageclient/node", () => import("vscode-jsonrpc/node"));

const { ProcessAdapter } = await import("../../src/debug/processAdapter");

/** The messages of a session with a program of Node in the debugger's place, and what is told. */
async function session(
  program: string,
  act: (child: ChildProcessWithoutNullStreams) => void,
  commands: string[] = ["initialize"],
  executable = process.execPath,
) {
  const child = spawn(executable, ["-e", program]);
  const told: string[] = [];
  const adapter = new ProcessAdapter(child, (why) => told.push(why));
  const messages: DebugProtocol.ProtocolMessage[] = [];
  adapter.onDidSendMessage((message) => {
    messages.push(message as unknown as DebugProtocol.ProtocolMessage);
  });
  const closed = new Promise((resolve) => child.once("close", resolve));
  commands.forEach((command, k) => {
    adapter.handleMessage({ seq: k + 1, type: "request", command } as never);
  });
  act(child);
  await closed;
  return { told, messages: messages as DebugProtocol.Event[] };
}

const events = (messages: DebugProtocol.Event[]) =>
  messages.filter(({ type }) => type === "event").map(({ event }) => event);

const WAITS = "process.stdin.resume(); setInterval(() => {}, 1000)";
const ENDS = `const text = JSON.stringify({ seq: 1, type: "event", event: "terminated" });
process.stdout.write("Content-Length: " + text.length + "\\r\\n\\r\\n" + text);`;

describe("a debugger that ends", () => {
  it("by a signal says which, and answers nothing any more", async () => {
    const { told, messages } = await session(WAITS, (child) => child.kill("SIGKILL"));
    expect(told).toEqual(["opstep's debugger has ended: SIGKILL"]);
    expect(events(messages)).toEqual(["output", "terminated"]);
    expect(messages[0]).toMatchObject({ success: false, message: told[0], request_seq: 1 });
  });

  it("by itself says with which code", async () => {
    const { told, messages } = await session("process.exit(3)", () => {});
    expect(told).toEqual(["opstep's debugger has ended with exit code 3"]);
    expect(events(messages)).toEqual(["output", "terminated"]);
  });

  it("after it has told the end of the session is nothing new", async () => {
    const { told, messages } = await session(ENDS, () => {});
    expect(told).toEqual([]);
    expect(events(messages)).toEqual(["terminated"]);
  });

  it("as the user wants it is nothing new", async () => {
    const all = ["initialize", "disconnect"];
    const { told, messages } = await session(WAITS, (child) => child.kill(), all);
    expect(told).toEqual([]);
    expect(events(messages)).toEqual(["terminated"]);
  });

  it("before it has begun says why", async () => {
    const { told } = await session("", () => {}, ["initialize"], "/no/such/python");
    expect(told).toHaveLength(1);
    expect(told[0]).toContain("could not be started: spawn /no/such/python ENOENT");
  });
});
