/** Into a kernel of the op at the stop: which launch, which thread, then a session of its own. */

import * as vscode from "vscode";
import type { Services, Stop } from "../services";
import { KERNEL } from "./launch";
import { whileStopped } from "./questions";

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

/** A kernel's thread, or the question which one. */
interface Choice extends vscode.QuickPickItem {
  kernel?: Launch;
  place?: (gone: vscode.CancellationToken) => Promise<Record<string, unknown> | undefined>;
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
  if (kernels.every((kernel) => kernel.obstacle)) {
    const why = kernels[0]?.obstacle;
    void vscode.window.showInformationMessage(
      why ? `This op's kernel cannot be entered: ${why}` : "This op runs no kernel.",
    );
    return;
  }
  const entered = await whileStopped(services, stop, async (gone) => {
    const options = { title: "Which kernel?" };
    const chosen = await vscode.window.showQuickPick(choicesOf(kernels), options, gone);
    const place = await chosen?.place?.(gone);
    return chosen?.kernel && place && { kernel: chosen.kernel, place };
  });
  if (entered) {
    const { target, launch } = entered.kernel;
    const { frameId } = stop;
    await stop.session.customRequest("opstep/enterKernel", {
      frameId,
      target,
      launch,
      ...entered.place,
    });
  }
}

/** In the order in which the debugger offers them: what the session runs on comes first. */
export function choicesOf(kernels: Launch[]): Choice[] {
  const targets = [...new Set(kernels.map(({ target }) => target))];
  return targets.flatMap((target) => [
    {
      label: target === "cpu" ? "as the CPU runs it" : "as a GPU runs it, simulated",
      kind: vscode.QuickPickItemKind.Separator,
    },
    ...kernels.filter((k) => k.target === target).flatMap(placesIn),
  ]);
}

function placesIn(kernel: Launch): Choice[] {
  const { label, obstacle } = kernel;
  if (obstacle) {
    return [{ label, description: `$(circle-slash) ${obstacle}` }];
  }
  const first = { label, description: extent(kernel), kernel, place: async () => ({}) };
  if (kernel.target === "cpu") {
    const last = (kernel.units ?? 1) - 1;
    const unit = async (gone: vscode.CancellationToken) => {
      const found = await promptNumbers(gone, `Work item, 0 to ${last}`, `${last}`, 1);
      return found && { unit: found[0] };
    };
    return last > 0 ? [first, { label: "another work item…", kernel, place: unit }] : [first];
  }
  return [
    first,
    {
      label: "the thread that writes a given element…",
      kernel,
      place: async (gone) => {
        const element = await promptNumbers(gone, "Indices of the element of the result", "0, 0");
        return element && { element };
      },
    },
    { label: "another block and thread…", kernel, place: (gone) => promptThread(gone, kernel) },
  ];
}

function extent(kernel: Launch): string {
  return kernel.target === "cpu"
    ? `${kernel.units} work items`
    : `grid ${kernel.grid?.join("×")}, block ${kernel.block?.join("×")}`;
}

async function promptThread(
  gone: vscode.CancellationToken,
  kernel: Launch,
): Promise<Record<string, unknown> | undefined> {
  const within = (size?: number[]) => `within ${size?.join(", ")}`;
  const block = await promptNumbers(gone, `Block, ${within(kernel.grid)}`, "0, 0, 0", 3);
  const thread =
    block && (await promptNumbers(gone, `Thread, ${within(kernel.block)}`, "0, 0, 0", 3));
  return thread && { block, thread };
}

async function promptNumbers(
  gone: vscode.CancellationToken,
  title: string,
  value: string,
  count?: number,
): Promise<number[] | undefined> {
  const read = (text: string) =>
    text
      .split(/[\s,]+/)
      .filter(Boolean)
      .map(Number);
  const validateInput = (typed: string) => {
    const found = read(typed);
    const fine = found.every((n) => Number.isInteger(n) && n >= 0);
    return fine && (count === undefined || found.length === count)
      ? undefined
      : `${count ?? "Some"} whole numbers, separated by commas`;
  };
  const text = await vscode.window.showInputBox({ title, value, validateInput }, gone);
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
