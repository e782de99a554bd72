/** Into a kernel of the op at the stop: which launch, which thread, then a session of its own. */

import * as vscode from "vscode";
import type { Services, Stop } from "../services";
import { KERNEL } from "./launch";

/** What `opstep/kernels` tells of a launch (see docs/dap.md). */
interface Launch {
  label: string;
  target: "cuda" | "cpu";
  launch: number;
  function: string;
  grid?: number[];
  block?: number[];
  units?: number;
  obstacle?: string;
}

/** Asks which kernel and which thread, and enters it. */
export async function enterKernel(services: Services): Promise<void> {
  const stop = services.stop;
  if (!stop) {
    void vscode.window.showInformationMessage("To step into a kernel, stop at an op first.");
    return;
  }
  const { kernels } = (await stop.session.customRequest("opstep/kernels", {
    frameId: stop.frameId,
  })) as { kernels: Launch[] };
  const chosen = await pickLaunch(kernels);
  const place = chosen && (await pickThread(chosen));
  if (chosen && place) {
    await stop.session.customRequest("opstep/enterKernel", {
      frameId: stop.frameId,
      target: chosen.target,
      launch: chosen.launch,
      ...place,
    });
  }
}

async function pickLaunch(kernels: Launch[]): Promise<Launch | undefined> {
  const open = kernels.filter((kernel) => !kernel.obstacle);
  if (open.length === 0) {
    const why = kernels[0]?.obstacle;
    void vscode.window.showInformationMessage(
      why ? `This op's kernel cannot be entered: ${why}` : "This op runs no kernel.",
    );
    return undefined;
  }
  if (open.length === 1) {
    return open[0];
  }
  const picked = await vscode.window.showQuickPick(
    kernels.map((kernel) => ({
      label: kernel.label,
      description: kernel.obstacle ? `$(circle-slash) ${kernel.obstacle}` : extent(kernel),
      kernel,
    })),
    { title: "Which kernel?" },
  );
  return picked?.kernel.obstacle ? undefined : picked?.kernel;
}

function extent(kernel: Launch): string {
  return kernel.target === "cpu"
    ? `${kernel.units} work items`
    : `grid ${kernel.grid?.join("×")}, block ${kernel.block?.join("×")}`;
}

async function pickThread(kernel: Launch): Promise<Record<string, unknown> | undefined> {
  if (kernel.target === "cpu") {
    const unit = await promptNumbers(`Work item, 0 to ${(kernel.units ?? 1) - 1}`, "0", 1);
    return unit && { unit: unit[0] };
  }
  const how = await vscode.window.showQuickPick(
    [
      { label: "First thread of the first block", how: "first" },
      { label: "The thread that writes a given element…", how: "element" },
      { label: "A block and a thread…", how: "thread" },
    ],
    { title: kernel.label, placeHolder: extent(kernel), ignoreFocusOut: true },
  );
  switch (how?.how) {
    case "first":
      return {};
    case "element": {
      const element = await promptNumbers("Indices of the element of the result", "0, 0");
      return element && { element };
    }
    case "thread": {
      const block = await promptNumbers(`Block, within ${kernel.grid?.join(", ")}`, "0, 0, 0", 3);
      const thread =
        block && (await promptNumbers(`Thread, within ${kernel.block?.join(", ")}`, "0, 0, 0", 3));
      return thread && { block, thread };
    }
    default:
      return undefined;
  }
}

async function promptNumbers(
  title: string,
  value: string,
  count?: number,
): Promise<number[] | undefined> {
  const read = (text: string) =>
    text
      .split(/[\s,]+/)
      .filter(Boolean)
      .map(Number);
  const text = await vscode.window.showInputBox({
    title,
    value,
    validateInput: (typed) => {
      const found = read(typed);
      const fine = found.every((n) => Number.isInteger(n) && n >= 0);
      return fine && (count === undefined || found.length === count)
        ? undefined
        : `${count ?? "Some"} whole numbers, separated by commas`;
    },
  });
  return text === undefined ? undefined : read(text);
}

const MOST_SESSIONS = 16;
/** The workbench moves the focus by itself, a while after it was asked to: longer on a machine that is busy. */
const PATIENCE_MS = 2000;

/**
 * Brings a kernel's session to the front when it stops, and the graph's when the kernel has ended:
 * VS Code would leave in view what stood still before. What is in front is what keys act on.
 */
export function followKernels(): vscode.Disposable {
  let last: Promise<void> = Promise.resolve();
  // One after the other: two at a time would pass each other's session.
  const bring = (session: vscode.DebugSession, then: string) => {
    last = last
      .then(() => bringToFront(session))
      .then(() => vscode.commands.executeCommand<void>(then))
      .catch(() => undefined);
  };
  return vscode.Disposable.from(
    vscode.debug.registerDebugAdapterTrackerFactory(KERNEL, {
      createDebugAdapterTracker: (session) => ({
        onDidSendMessage: (message) => {
          if (message.type === "event" && message.event === "stopped") {
            // The console that was opened on the way has taken the keys.
            bring(session, "workbench.action.focusActiveEditorGroup");
          }
        },
      }),
    }),
    vscode.debug.onDidTerminateDebugSession((session) => {
      if (session.type === KERNEL && session.parentSession) {
        bring(session.parentSession, "workbench.action.debug.callStackTop");
      }
    }),
  );
}

/** There is no call for it; but to go to the next console is to go to its session. */
async function bringToFront(session: vscode.DebugSession): Promise<void> {
  const there = () => vscode.debug.activeDebugSession?.id === session.id;
  for (let i = 0; !there() && i < MOST_SESSIONS; i++) {
    const moved = new Promise<void>((resolve) => {
      const end = () => {
        clearTimeout(timer);
        listening.dispose();
        resolve();
      };
      const timer = setTimeout(end, PATIENCE_MS);
      const listening = vscode.debug.onDidChangeActiveDebugSession(end);
    });
    await vscode.commands.executeCommand("workbench.action.debug.nextConsole");
    await moved;
  }
}

/** Continues to the line of the cursor. */
export async function runToLine(services: Services): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  const stop: Stop | undefined = services.stop;
  if (!editor || !stop) {
    void vscode.window.showInformationMessage("To run to a line, stop in its graph first.");
    return;
  }
  await stop.session.customRequest("opstep/runTo", {
    source: { path: editor.document.uri.fsPath },
    line: editor.selection.active.line + 1,
  });
}
