import { expect, it, vi } from "vitest";

vi.mock("vscode", () => ({}));

const { processesIn, sorted } = await import("../../src/debug/processes");

const LINES = `      1 /sbin/init
   2201 /usr/bin/python3 -m http.server
  10400 vim train.py
  10501 python train.py --epochs 3
`;

it("lists processes, Python's first and the latest before", () => {
  expect(sorted(processesIn(LINES)).map(({ id }) => id)).toEqual(["10501", "2201", "10400", "1"]);
  expect(processesIn(LINES)[3]?.command).toBe("python train.py --epochs 3");
});
