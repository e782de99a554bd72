import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  candidates,
  complaint,
  discover,
  type Environment,
  examine,
  expandPath,
  inFolder,
  type Probe,
  probe,
} from "../src/discovery";

const READY: Probe = {
  version: "3.12.1",
  opstep: "0.1.0",
  servers: true,
  missing: [],
  executable: "python",
};

describe("a path of the settings", () => {
  it.each([
    ["~/env/bin/python", "/people/me/env/bin/python"],
    ["${workspaceFolder}/.venv/bin/python", "/one/.venv/bin/python"],
    ["${workspaceFolder:two}/bin/python", "/two/bin/python"],
    ["${env:CONDA}/bin/python", "/opt/conda/bin/python"],
    ["${userHome}/python", "/people/me/python"],
    ["env/bin/python", "/one/env/bin/python"],
    ["python3.12", "python3.12"],
    ["  /usr/bin/python3 ", "/usr/bin/python3"],
    ["a~b", "a~b"],
  ])("%s", (text, expanded) => {
    expect(expandPath(text, ["/one", "/two"], "/people/me", { CONDA: "/opt/conda" })).toBe(
      expanded,
    );
  });
});

it.each([
  ["/one/.venv/bin/python", ["/one"], "${workspaceFolder}/.venv/bin/python"],
  ["/two/bin/python", ["/one", "/two"], "${workspaceFolder:two}/bin/python"],
  ["/one-more/bin/python", ["/one"], undefined],
  ["/usr/bin/python3", ["/one"], undefined],
  ["python3.12", [], undefined],
  ["", ["/one"], undefined],
])("an interpreter %s is kept in the settings of %j as %s", (file, folders, kept) => {
  expect(inFolder(file, folders)).toBe(kept);
  if (kept) {
    expect(expandPath(kept, folders)).toBe(file);
  }
});

describe("candidates", () => {
  const files = new Set([
    "/ws/.venv/bin/python",
    "/ws/sub/venv/bin/python",
    "/usr/bin/python3",
    "/usr/bin/python",
    "/opt/bin/python3",
  ]);
  const around: Environment = {
    setting: "",
    folders: ["/ws"],
    file: "/ws/sub/deep/model.opg",
    searchPath: "/opt/bin:/usr/bin",
    platform: "linux",
    home: "/people/me",
    exists: (file) => files.has(file),
  };

  it("come in order: the extension's, the folder's, those of the file's parents, PATH", () => {
    expect(candidates({ ...around, active: "/envs/ml/bin/python" })).toEqual([
      { path: "/envs/ml/bin/python", origin: "extension" },
      { path: "/ws/.venv/bin/python", origin: "venv" },
      { path: "/ws/sub/venv/bin/python", origin: "venv" },
      { path: "/opt/bin/python3", origin: "path" },
      { path: "/usr/bin/python", origin: "path" },
    ]);
  });

  it("are each named once", () => {
    const found = candidates({ ...around, active: "/ws/.venv/bin/python" });
    expect(found.filter((c) => c.path === "/ws/.venv/bin/python")).toHaveLength(1);
  });

  it("are the setting alone where there is one, whether it exists or not", () => {
    expect(candidates({ ...around, setting: "/gone/python", active: "/other" })).toEqual([
      { path: "/gone/python", origin: "setting" },
    ]);
    expect(candidates({ ...around, setting: "python3" })).toEqual([
      { path: "/opt/bin/python3", origin: "setting" },
    ]);
  });
});

describe("discover", () => {
  const tried = ["/a", "/b", "/c"].map((p) => ({ path: p, origin: "path" as const }));
  const answers = (table: Record<string, Probe | string>) => {
    const asked: string[] = [];
    const ask = async (python: string) => {
      asked.push(python);
      return table[python] ?? "spawn ENOENT";
    };
    return { ask, asked };
  };

  it("takes the first that is ready, and asks no further", async () => {
    const { ask, asked } = answers({
      "/a": { ...READY, opstep: undefined },
      "/b": READY,
      "/c": READY,
    });
    const { chosen } = await discover(tried, ask, () => true);
    expect(chosen?.path).toBe("/b");
    expect(asked).toEqual(["/a", "/b"]);
  });

  it("takes what needs least where none is ready", async () => {
    const { ask } = answers({
      "/a": { ...READY, version: "3.8.1" },
      "/b": { ...READY, opstep: undefined },
      "/c": "Segmentation fault",
    });
    const { chosen, found } = await discover(tried, ask, () => true);
    expect(chosen?.path).toBe("/b");
    expect(found.map((f) => f.verdict)).toEqual(["old-python", "no-opstep", "broken"]);
    expect(complaint(chosen, found).text).toBe(
      "opstep is not installed in /b (Python 3.12.1). Also tried: /a, /c.",
    );
  });

  it.each([
    [{ version: "3.10.9" }, "old-python", /needs Python 3\.11 or newer; \/a is 3\.10\.9/],
    [{ opstep: undefined }, "no-opstep", /not installed in \/a/],
    [{ opstep: "0.0.9" }, "old-opstep", /opstep 0\.0\.9 in \/a is too old/],
    [{ servers: false }, "old-opstep", /with its language server/],
    [{ missing: ["pygls", "rich"] }, "incomplete", /lacks pygls, rich/],
  ])("says what is wrong: %o", async (facts, verdict, text) => {
    const found = await examine(
      { path: "/a", origin: "path" },
      async () => ({ ...READY, ...facts }),
      () => true,
    );
    expect(found.verdict).toBe(verdict);
    expect(complaint(found).text).toMatch(text);
    expect(complaint(found).actions).toContain("select");
  });

  it("names the setting that is to blame, and opens it", async () => {
    const found = await examine({ path: "/gone", origin: "setting" }, undefined, () => false);
    expect(complaint(found)).toEqual({
      text: "/gone (setting opstep.python) does not exist.",
      actions: ["select", "settings"],
    });
  });

  it("says so where there is no Python at all", () => {
    expect(complaint(undefined).text).toMatch(/none was found/);
  });
});

describe("probe", () => {
  let folder: string;
  beforeEach(async () => {
    folder = await mkdtemp(path.join(tmpdir(), "opstep-probe-"));
  });
  afterEach(() => rm(folder, { recursive: true }));

  const script = async (text: string) => {
    const file = path.join(folder, "python");
    await writeFile(file, `#!/bin/sh\n${text}\n`);
    await chmod(file, 0o755);
    return file;
  };

  it("reads what a real Python says", async () => {
    const told = await probe("python3");
    expect(told).toMatchObject({ version: expect.stringMatching(/^3\.\d+\.\d+$/) });
  });

  it("does not take a folder called opstep for an installation", async () => {
    await mkdir(path.join(folder, "opstep"));
    const home = process.env.HOME;
    process.env.HOME = folder;
    try {
      const told = (await probe("python3")) as Probe;
      expect(told.servers).toBe(false);
      expect(told.opstep).toBeUndefined();
    } finally {
      process.env.HOME = home;
    }
  });

  it("tells the last line of what went wrong", async () => {
    expect(await probe(await script("echo one >&2; echo 'no such thing' >&2; exit 3"))).toBe(
      "no such thing",
    );
  });

  it("tells a program that is no Python", async () => {
    expect(await probe(await script("echo hello"))).toMatch(/did not respond like a Python/);
  });

  it("gives up on one that hangs", async () => {
    expect(await probe(await script("exec sleep 20"), 300)).toMatch(/no answer within 0.3 s/);
  });

  it("tells that nothing is there", async () => {
    expect(await probe(path.join(folder, "none"))).toMatch(/ENOENT/);
  });
});
