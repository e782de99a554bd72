import { describe, expect, it } from "vitest";
import { applyDefaults, configurationName, isScript, stopsScripts } from "../../src/debug/launch";

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

  it("of a script stops before its first pass unless a breakpoint may stop it", () => {
    const at = (path: string) => ({ enabled: true, location: { uri: { path } } });
    expect(stopsScripts(at("/ws/net.py"))).toBe(true);
    expect(stopsScripts({ enabled: true })).toBe(true); // on a function, or on data
    expect(stopsScripts(at("/ws/entropy.opg"))).toBe(false);
    expect(stopsScripts({ ...at("/ws/net.py"), enabled: false })).toBe(false);
  });
});
