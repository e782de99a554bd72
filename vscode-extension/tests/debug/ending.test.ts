import { expect, it } from "vitest";
import { Ending } from "../../src/debug/ending";

const stopped = (reason: string) => ({ event: "stopped", body: { reason } });
const exited = (exitCode: number) => ({ event: "exited", body: { exitCode } });
const output = { event: "output", body: { output: "ValueError: no data" } };

it.each([
  ["fails", "train.py", [output, exited(1)], true],
  ["ends well", "train.py", [output, exited(0)], false],
  ["fails behind a breakpoint", "train.py", [stopped("breakpoint"), exited(1)], true],
  ["fails where it stood", "train.py", [stopped("exception"), exited(1)], false],
  ["has an exit code of its own", "train.py", [exited(5)], true],
  ["ends with a NaN, which has a report", "model.opg", [exited(5)], false],
  ["does not run to its end", "model.opg", [exited(3)], true],
])("a session that %s", (_, program, messages, shown) => {
  const ending = new Ending(program);
  expect(messages.map((message) => ending.received(message)).includes(true)).toBe(shown);
});

it("a session that somebody has ended", () => {
  const ending = new Ending("train.py");
  ending.sent({ command: "continue" });
  ending.sent({ command: "terminate" });
  expect(ending.received(exited(143))).toBe(false);
});
