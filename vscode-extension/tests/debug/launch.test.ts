import { describe, expect, it } from "vitest";
import {
  applyDefaults,
  configurationName,
  isKernel,
  isPython,
  isScript,
  pythonDefaults,
} from "../../src/debug/launch";

const SETTINGS = { device: "cuda:1", mode: "auto", folder: "/ws" };

describe("a launch configuration", () => {
  it("gets device, mode and folder where it names none", () => {
    expect(applyDefaults({ program: "/ws/a.opg" }, SETTINGS)).toEqual({
      program: "/ws/a.opg",
      device: "cuda:1",
      mode: "debug",
      cwd: "/ws",
    });
  });

  it("keeps what it names", () => {
    const own = { program: "a.opg", device: "cpu", mode: "async", cwd: "/else" };
    expect(applyDefaults(own, SETTINGS)).toEqual(own);
  });

  it("runs at full speed without debugging", () => {
    expect(applyDefaults({ program: "/a.opg", noDebug: true }, SETTINGS).mode).toBe("async");
    const settings = { ...SETTINGS, mode: "debug" };
    expect(applyDefaults({ program: "/a.opg", noDebug: true }, settings).mode).toBe("debug");
  });

  it("runs beside its file where no folder is open", () => {
    const settings = { ...SETTINGS, folder: undefined };
    expect(applyDefaults({ program: "/far/a.opg" }, settings).cwd).toBe("/far");
  });

  it("is called by file and graph", () => {
    expect(configurationName("/ws/nets/lenet.opg", "main")).toBe("lenet.opg: main");
  });

  it("is of a script where its program is one", () => {
    expect(["train.py", "/ws/Train.PY", "gui.pyw"].map(isScript)).toEqual([true, true, true]);
    expect(["net.opg", "net.pt2", "py", undefined].some(isScript)).toBe(false);
  });

  it.each([
    [{ request: "launch", program: "train.py" }, true],
    [{ request: "launch", module: "torch.distributed.run" }, true],
    [{ request: "launch", code: "print(1)" }, true],
    [{ request: "attach", connect: { port: 5678 } }, true],
    [{ request: "attach", listen: { port: 5678 } }, true],
    [{ request: "attach", processId: "12" }, true],
    [{ request: "launch", program: "lenet.opg" }, false],
    [{ request: "launch", run: "a1", workspace: "runs.db" }, false],
    [{ request: "attach", port: 5678 }, false],
  ])("%j is of Python: %s", (config, expected) => {
    expect(isPython(config)).toBe(expected);
  });

  it("of a kernel is none of a script's process", () => {
    const kernel = {
      request: "attach",
      name: "kernel relu, block (0,0,0)",
      connect: {},
      rules: [],
    };
    expect(isKernel(kernel)).toBe(true);
    expect(isKernel({ ...kernel, subProcessId: 7, name: "Subprocess 7" })).toBe(false);
    expect(isKernel({ request: "attach", name: "mine", connect: { port: 5678 } })).toBe(false);
  });

  it("of Python runs in a terminal, which the Debug Console does not cover", () => {
    expect(pythonDefaults({ request: "launch", program: "a.py" })).toEqual({
      request: "launch",
      program: "a.py",
      console: "integratedTerminal",
      showReturnValue: true,
      internalConsoleOptions: "neverOpen",
      opensConsole: "never",
    });
    const inConsole = { request: "launch", console: "internalConsole" };
    expect(pythonDefaults(inConsole)).toHaveProperty("opensConsole", "onOutput");
    const own = {
      request: "launch",
      console: "internalConsole",
      showReturnValue: false,
      internalConsoleOptions: "openOnSessionStart",
    };
    expect(pythonDefaults(own)).toEqual(own);
    expect(pythonDefaults({ request: "attach" })).not.toHaveProperty("console");
  });
});
