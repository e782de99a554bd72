import { expect, it } from "vitest";
import { Ending, hasFailed, signalOf } from "../../src/debug/ending";

const stopped = (reason: string) => ({ event: "stopped", body: { reason } });
const exited = (exitCode: number) => ({ event: "exited", body: { exitCode } });
const output = { event: "output", body: { output: "error: there is no data" } };

it.each([
  ["fails", [output, exited(1)], true],
  ["ends well", [output, exited(0)], false],
  ["fails after a breakpoint", [stopped("breakpoint"), exited(1)], true],
  ["fails where it stood", [stopped("exception"), exited(1)], false],
  ["ends with a NaN, which has a report", [exited(5)], false],
  ["does not run to its end", [exited(3)], true],
])("a session that %s", (_, messages, shown) => {
  const ending = new Ending();
  const codes = messages.map((message) => ending.received(message));
  expect(codes.some(hasFailed)).toBe(shown);
});

it("a session that somebody has ended", () => {
  const ending = new Ending();
  ending.sent({ command: "continue" });
  ending.sent({ command: "terminate" });
  expect(ending.received(exited(143))).toBeUndefined();
});

it.each([
  [245, "SIGSEGV"],
  [247, "SIGKILL"],
  [-9, "SIGKILL"],
  [1, undefined],
  [0, undefined],
  [undefined, undefined],
])("exit code %s of debugpy stands for %s", (code, signal) => {
  expect(signalOf(code)).toBe(signal);
});
