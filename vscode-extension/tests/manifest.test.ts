/** The manifest: what it promises is there, and said in words. */

import { existsSync, readFileSync } from "node:fs";
import path from "node:path";
import { expect, it } from "vitest";
import manifest from "../package.json";

const ROOT = path.join(__dirname, "..");
const { contributes } = manifest;

const commands = contributes.commands.map((c) => c.command);

it("names each command once, with a title", () => {
  expect(new Set(commands).size).toBe(commands.length);
  for (const command of contributes.commands) {
    expect(command.title, command.command).toMatch(/\S/);
  }
});

it("has menus and keys for commands that exist", () => {
  const used = [
    ...Object.values(contributes.menus).flatMap((items) =>
      items.flatMap((item) => ("command" in item ? item.command : [])),
    ),
    ...contributes.keybindings.map((k) => k.command),
  ].filter((name): name is string => name?.startsWith("opstep.") ?? false);
  expect(used.filter((name) => !commands.includes(name))).toEqual([]);
});

it("describes each setting and each attribute of a launch", () => {
  const { launch, attach } = contributes.debuggers[0]?.configurationAttributes ?? {};
  const all = {
    ...contributes.configuration.properties,
    ...launch?.properties,
    ...attach?.properties,
  } as Record<string, { description?: string; markdownDescription?: string }>;
  for (const [name, property] of Object.entries(all)) {
    expect(property.description ?? property.markdownDescription, name).toMatch(/\S/);
  }
});

it("offers all arguments that the debugger's launch and attach take", () => {
  const read = (file: string) => readFileSync(path.join(ROOT, "../opstep", file), "utf8");
  const fields = (text: string, name: string) => {
    const body = text.slice(text.indexOf(`class ${name}`)).split(/\n {4}def |\n\n\n|\n@/)[0] ?? "";
    return [...body.matchAll(/^ {4}(\w+):/gm)].map((m) =>
      (m[1] ?? "").replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase()),
    );
  };
  const attributes = contributes.debuggers[0]?.configurationAttributes;
  const inherited = fields(read("api/settings.py"), "RunSettings"); // by LaunchArguments
  const launching = read("dap/launching.py");
  const fixed = [...launching.matchAll(/^ {4}(\w+): ClassVar/gm)].map((m) => m[1]);
  const launch = [...new Set([...inherited, ...fields(launching, "LaunchArguments")])].filter(
    (name) => name !== "noDebug" && !fixed.includes(name),
  );
  const attach = fields(read("dap/requests/lifecycle.py"), "AttachArguments");
  // What is said of the others is for Python.
  const ofGraphs = (properties: Record<string, { description?: string } | undefined> = {}) =>
    Object.keys(properties).filter(
      (name) => !properties[name]?.description?.startsWith("Of Python: "),
    );
  expect(launch.length).toBeGreaterThan(20);
  expect(ofGraphs(attributes?.launch?.properties).sort()).toEqual(launch.sort());
  expect(ofGraphs(attributes?.attach?.properties).sort()).toEqual(attach.sort());
});

it("offers what debugpy takes, and what the proxy in front of it adds", () => {
  const proxy = readFileSync(path.join(ROOT, "../opstep/dap/python/launching.py"), "utf8");
  const added = [...(/^OURS = \((.*)\)/m.exec(proxy)?.[1] ?? "").matchAll(/"(\w+)"/g)];
  const ours = added.map(([, name = ""]) => name);
  expect(ours).not.toEqual([]);
  const both = "django jinja justMyCode logToFile pathMappings redirectOutput showReturnValue";
  const attributes = contributes.debuggers[0]?.configurationAttributes;
  expect(Object.keys(attributes?.launch?.properties ?? {})).toEqual(
    expect.arrayContaining([
      ...`${both} args module code python pythonArgs cwd env envFile console`.split(" "),
      ...`subProcess stopOnEntry autoReload gevent guiEventLoop pyramid sudo`.split(" "),
      ...ours,
    ]),
  );
  expect(Object.keys(attributes?.attach?.properties ?? {})).toEqual(
    expect.arrayContaining([...`${both} connect listen processId subProcess`.split(" "), ...ours]),
  );
});

it("names files that are there", () => {
  const files = [
    manifest.icon,
    ...contributes.grammars.map((g) => g.path),
    ...contributes.snippets.map((s) => s.path),
    ...contributes.languages.flatMap((l) => [l.configuration, l.icon.light, l.icon.dark]),
    ...contributes.walkthroughs.flatMap((w) =>
      w.steps
        .flatMap((s) => Object.entries(s.media))
        .flatMap(([kind, file]) => (kind === "altText" ? [] : [file as string])),
    ),
  ];
  expect(files.filter((file) => !existsSync(path.join(ROOT, file)))).toEqual([]);
});

it("has a picture in the theme's colours, and a tick for what has worked, in each step", () => {
  const worked = readFileSync(path.join(ROOT, "src/walkthrough.ts"), "utf8");
  for (const step of contributes.walkthroughs.flatMap((w) => w.steps)) {
    const picture = readFileSync(path.join(ROOT, step.media.svg), "utf8");
    expect(picture).toMatch(/var\(--vscode-/);
    expect(picture, "fixed colours").not.toMatch(/#[0-9a-f]{3,8}\b|rgb\(/i);
    expect(step.media.altText).toMatch(/\S/);
    for (const event of step.completionEvents) {
      expect(event, step.id).toMatch(/^onContext:/);
      const key = /^onContext:opstep\.worked\.(\w+)$/.exec(event)?.[1];
      expect(key === undefined || worked.includes(`"${key}"`), event).toBe(true);
    }
  }
});

it("restricts in folders that are not trusted what could choose a program", () => {
  const { restrictedConfigurations } = manifest.capabilities.untrustedWorkspaces;
  expect(restrictedConfigurations).toEqual(
    expect.arrayContaining(["opstep.python", "opstep.package"]),
  );
});
