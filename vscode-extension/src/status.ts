/**
 * The status bar: the device and the mode that runs get, or those of the run that is debugged; and which
 * debugger the keys act on.
 */

import * as vscode from "vscode";
import { isPython, KERNEL } from "./debug/launch";
import { levelOf } from "./debug/level";
import { graphInView } from "./inView";
import type { Python } from "./python";
import type { Services } from "./services";

export function registerStatus(services: Services, python: Python): vscode.Disposable {
  const bar = vscode.window.createStatusBarItem("opstep.status", vscode.StatusBarAlignment.Left, 5);
  bar.name = "opstep: device and mode";
  const update = () => updateBar(bar, python);
  update();
  void python.find().then(update);
  return vscode.Disposable.from(
    bar,
    registerLevel(services),
    vscode.window.onDidChangeActiveTextEditor(update),
    vscode.window.tabGroups.onDidChangeTabs(update),
    vscode.debug.onDidChangeActiveDebugSession(update),
    python.onDidChange(update),
    vscode.workspace.onDidChangeConfiguration((e) => e.affectsConfiguration("opstep") && update()),
    vscode.commands.registerCommand("opstep.changeRun", () => changeRun(services)),
  );
}

/** Which debugger one is in: what F10 and F11 step. */
function registerLevel(services: Services): vscode.Disposable {
  const item = vscode.window.createStatusBarItem("opstep.level", vscode.StatusBarAlignment.Left, 6);
  item.name = "opstep: what the debugger's keys step";
  item.command = "workbench.debug.action.focusCallStackView";
  const update = () => {
    const session = vscode.debug.activeDebugSession;
    const level = levelOf(session, services.stop);
    if (level) {
      item.text = `$(${level.icon}) stepping ${level.what}`;
      item.tooltip = `F10 and F11 step ${level.what}. Choose a frame in the call stack to step another one.`;
    } else {
      item.text = "$(sync) running";
      item.tooltip = "The program runs. F6 stops it before the next op.";
    }
    if (level || onGraph(session)) {
      item.show();
    } else {
      item.hide();
    }
  };
  update();
  return vscode.Disposable.from(
    item,
    services.onStop(update),
    vscode.debug.onDidChangeActiveDebugSession(update),
    vscode.debug.onDidChangeActiveStackItem(update),
  );
}

/** Scripts choose their devices, and are stepped as ever. */
function onGraph(session: vscode.DebugSession | undefined): boolean {
  return session?.type === "opstep" && !isPython(session.configuration);
}

function updateBar(bar: vscode.StatusBarItem, python: Python): void {
  const session = vscode.debug.activeDebugSession;
  const debugged = onGraph(session) ? session?.configuration : undefined;
  if (!debugged && session?.type !== KERNEL && !graphInView()) {
    bar.hide();
    return;
  }
  const settings = vscode.workspace.getConfiguration("opstep");
  if (debugged?.request === "attach") {
    bar.text = "$(plug) opstep";
    bar.tooltip = "Attached to a Python program, which chooses the device and mode";
    bar.command = "opstep.changeRun";
    bar.backgroundColor = undefined;
    bar.show();
    return;
  }
  const device = debugged?.device ?? settings.get<string>("device", "cpu");
  const mode = debugged?.mode ?? settings.get<string>("mode", "auto");
  const found = python.current;
  bar.text = `$(circuit-board) ${device} · ${mode}`;
  bar.command = "opstep.changeRun";
  bar.backgroundColor = undefined;
  const lines = [
    debugged
      ? `**This session** runs on ${device}, mode ${mode}.`
      : `Runs use **${device}**, mode **${mode}**${describeMode(mode)}.`,
  ];
  if (found) {
    lines.push(`opstep ${found.probe?.opstep} in ${found.path}`);
  } else if (python.searched) {
    lines.push("No Python with opstep found.");
    bar.text = `$(warning) opstep`;
    bar.command = "opstep.selectPython";
    bar.backgroundColor = new vscode.ThemeColor("statusBarItem.warningBackground");
  }
  lines.push(found || !python.searched ? "Click to change." : "Click to choose one.");
  bar.tooltip = new vscode.MarkdownString(lines.join("\n\n"));
  bar.accessibilityInformation = {
    label: `opstep: device ${device}, mode ${mode}`,
    role: "button",
  };
  bar.show();
}

const MODES = [
  { value: "auto", detail: "debug under the debugger, async for other runs" },
  { value: "async", detail: "everything queued, several streams, memory reused: full speed" },
  { value: "debug", detail: "one op at a time on one stream, fresh memory filled with NaN" },
];

function describeMode(mode: string): string {
  const found = MODES.find((m) => m.value === mode);
  return found ? `: ${found.detail}` : "";
}

/** Changes the settings for the device and the mode. */
async function changeRun(services: Services): Promise<void> {
  const settings = vscode.workspace.getConfiguration("opstep");
  const device = settings.get<string>("device", "cpu");
  const mode = settings.get<string>("mode", "auto");
  type Item = vscode.QuickPickItem & { name?: "device" | "mode"; value?: string; command?: string };
  const separator = (label: string): Item => ({ label, kind: vscode.QuickPickItemKind.Separator });
  const item = (name: "device" | "mode", value: string, detail: string): Item => ({
    label: `${value === (name === "device" ? device : mode) ? "$(check) " : "$(blank) "}${value}`,
    description: detail,
    name,
    value,
  });
  const picked = await vscode.window.showQuickPick<Item>(
    [
      separator("Device"),
      item("device", "cpu", "this machine's cores"),
      item("device", "cuda", "the first NVIDIA GPU"),
      item("device", "null", "executes nothing: measures the loop"),
      { label: "$(blank) another…", description: "cuda:1", name: "device" },
      separator("Mode"),
      ...MODES.map((m) => item("mode", m.value, m.detail)),
      separator("opstep"),
      { label: "$(symbol-misc) Select Python…", command: "opstep.selectPython" },
      { label: "$(pulse) Show what this machine supports (doctor)", command: "opstep.doctor" },
      { label: "$(debug-restart) Restart the language server", command: "opstep.restartServer" },
    ],
    {
      title: "opstep: device and mode",
      placeHolder: "For runs and sessions started from now on",
    },
  );
  if (picked?.command) {
    await vscode.commands.executeCommand(picked.command);
    return;
  }
  if (!picked?.name) {
    return;
  }
  const value = picked.value ?? (await promptDevice(device));
  if (value) {
    const target = vscode.workspace.workspaceFolders
      ? vscode.ConfigurationTarget.Workspace
      : vscode.ConfigurationTarget.Global;
    await settings.update(picked.name, value, target);
    services.log.info(`${picked.name} is ${value}`);
  }
}

function promptDevice(value: string): Thenable<string | undefined> {
  return vscode.window.showInputBox({
    title: "Device",
    value,
    validateInput: (typed) =>
      /^(cpu|null|cuda(:\d+)?)$/.test(typed) ? undefined : "cpu, cuda, cuda:1, … or null",
  });
}
