import { expect, it } from "vitest";
import { levelOf } from "../../src/debug/level";

const SESSION = { type: "opstep", id: "1", name: "small.opg: main" };

it("is a graph, or the Python that it was imported from", () => {
  const stop = { session: SESSION, graph: "main", isScript: false };
  expect(levelOf(SESSION, stop)?.what).toBe("graph main");
  const python = { name: "forward", path: "/net.py", line: 3 };
  expect(levelOf(SESSION, { ...stop, python })?.what).toBe("Python (forward)");
});

it("is nothing while the script or the graph runs, also where another session stands", () => {
  expect(levelOf(SESSION, undefined)).toBeUndefined();
  expect(
    levelOf(SESSION, { session: { id: "2" }, graph: "other", isScript: false }),
  ).toBeUndefined();
});

it("is a kernel in a session of its own", () => {
  const kernel = { type: "opstep-kernel", id: "3", name: "kernel relu, block (0,0,0)" };
  expect(levelOf(kernel, { session: SESSION, graph: "main", isScript: false })?.what).toBe(
    "kernel relu",
  );
});

it("is nothing of ours in other sessions", () => {
  expect(levelOf({ type: "python", id: "4", name: "" }, undefined)).toBeUndefined();
  expect(levelOf(undefined, undefined)).toBeUndefined();
  const script = { session: SESSION, graph: "forward", isScript: true };
  expect(levelOf(SESSION, script)).toBeUndefined(); // stepped as ever
});
