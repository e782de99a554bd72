/** Tracks where debug sessions are stopped: one current stop for all views. */

import type { DebugProtocol } from "@vscode/debugprotocol";
import * as vscode from "vscode";
import { parseFrame } from "../shared/frames";
import { isPython } from "./debug/launch";
import type { Stop } from "./services";
import { worked } from "./walkthrough";

/** A stopped session: why, and which pending stackTrace requests will tell its innermost frame. */
interface StoppedSession {
  readonly stopped: DebugProtocol.StoppedEvent["body"];
  requests: Set<number> | undefined;
}

const LEAVING_MS = 100; // from a session that goes on to views that show no stop

/** Where a frame that shows Python stands in the graph. */
interface GraphPlace {
  /** As a frame of the graph is called. */
  readonly name: string;
  readonly path: string;
  readonly line: number;
}

/** Follows sessions, on graphs and on Python, and which frame is chosen. */
export class Stops implements vscode.Disposable {
  private readonly fired = new vscode.EventEmitter<Stop | undefined>();
  private readonly disposables: vscode.Disposable[] = [this.fired];
  private readonly stopped = new Map<vscode.DebugSession, StoppedSession>();
  private current: Stop | undefined;
  private leaving: ReturnType<typeof setTimeout> | undefined;
  readonly onStop = this.fired.event;

  constructor(private readonly log: vscode.LogOutputChannel) {
    this.disposables.push(
      vscode.debug.registerDebugAdapterTrackerFactory("opstep", {
        createDebugAdapterTracker: (session) => ({
          onWillReceiveMessage: (message) => this.sent(session, message),
          onDidSendMessage: (message) => this.received(session, message),
        }),
      }),
      vscode.debug.onDidStartDebugSession(({ type, configuration }) => {
        if (type === "opstep" && isPython(configuration)) {
          worked("torch");
        }
      }),
      vscode.debug.onDidChangeActiveStackItem((item) => void this.frameSelected(item)),
      vscode.debug.onDidTerminateDebugSession((session) => this.leave(session)),
    );
  }

  dispose(): void {
    clearTimeout(this.leaving);
    vscode.Disposable.from(...this.disposables).dispose();
  }

  get stop(): Stop | undefined {
    return this.current;
  }

  /** The session goes on: what it said of its stop holds no longer. */
  private sent(session: vscode.DebugSession, message: DebugProtocol.ProtocolMessage): void {
    if (message.type === "request") {
      const { command } = message as DebugProtocol.Request;
      if (["disconnect", "terminate", "restart"].includes(command)) {
        this.leave(session);
      } else if (command === "stackTrace") {
        this.stackRequested(session, message as DebugProtocol.StackTraceRequest);
      }
    }
  }

  private received(session: vscode.DebugSession, message: DebugProtocol.ProtocolMessage): void {
    if (message.type === "response") {
      const answer = message as DebugProtocol.Response;
      if (answer.success && RESUMING.has(answer.command)) {
        this.leave(session);
      } else if (answer.success && answer.command === "stackTrace") {
        this.stackReceived(session, answer as DebugProtocol.StackTraceResponse);
      } else if (answer.success && SETTING.has(answer.command)) {
        this.changed(session);
      }
      return;
    }
    if (message.type !== "event") {
      return;
    }
    const { event, body } = message as DebugProtocol.Event;
    if (event === "stopped") {
      if (body.reason === "step") {
        worked("step");
      }
      this.stopped.set(session, { stopped: body, requests: new Set() });
    } else if (event === "continued" || event === "terminated" || event === "exited") {
      this.leave(session);
    } else if (event === "invalidated") {
      this.changed(session, true);
    }
  }

  /** A value was set; of graphs the debugger says so itself. */
  private changed(session: vscode.DebugSession, isSaid = false): void {
    const { current } = this;
    if (current?.session === session && (isSaid || current.isScript)) {
      this.publish({ ...current });
    }
  }

  private leave(session: vscode.DebugSession): void {
    this.stopped.delete(session);
    if (this.current?.session === session) {
      this.publish(undefined);
    }
  }

  /** A step ends soon: views that emptied meanwhile would only flicker, and be slower. */
  private publish(stop: Stop | undefined): void {
    if (!stop && !this.current) {
      return;
    }
    this.current = stop;
    clearTimeout(this.leaving);
    if (stop) {
      this.fired.fire(stop);
    } else {
      this.leaving = setTimeout(() => this.fired.fire(undefined), LEAVING_MS);
    }
  }

  private stackRequested(
    session: vscode.DebugSession,
    request: DebugProtocol.StackTraceRequest,
  ): void {
    const stopped = this.stopped.get(session);
    const { startFrame, threadId } = request.arguments;
    if (!startFrame && threadId === threadOf(stopped?.stopped)) {
      stopped?.requests?.add(request.seq);
    }
  }

  /** VS Code asks every session that stops for its frames: views need not ask once more. */
  private stackReceived(
    session: vscode.DebugSession,
    answer: DebugProtocol.StackTraceResponse,
  ): void {
    const stopped = this.stopped.get(session);
    const frame = answer.body.stackFrames[0];
    if (stopped?.requests?.has(answer.request_seq) && frame) {
      stopped.requests = undefined;
      this.publish(this.stopOf(session, threadOf(stopped.stopped), frame));
    }
  }

  /** Another frame was chosen in the call stack. */
  private async frameSelected(
    item: vscode.DebugThread | vscode.DebugStackFrame | undefined,
  ): Promise<void> {
    if (!(item instanceof vscode.DebugStackFrame) || !this.stopped.has(item.session)) {
      return;
    }
    const { session, threadId, frameId } = item;
    if (this.current?.session === session && this.current.frameId === frameId) {
      return;
    }
    const stopped = this.stopped.get(session);
    const frames = await this.frames(session, threadId);
    const frame = frames.find((f) => f.id === frameId);
    if (frame && this.stopped.get(session) === stopped) {
      this.publish(this.stopOf(session, threadId, frame));
    }
  }

  private async frames(
    session: vscode.DebugSession,
    threadId: number,
  ): Promise<DebugProtocol.StackFrame[]> {
    try {
      const answer = await session.customRequest("stackTrace", { threadId });
      return (answer as DebugProtocol.StackTraceResponse["body"]).stackFrames;
    } catch (error) {
      this.log.debug(`no frames: ${error}`);
      return [];
    }
  }

  private stopOf(
    session: vscode.DebugSession,
    threadId: number,
    frame: DebugProtocol.StackFrame,
  ): Stop {
    const stopped = this.stopped.get(session)?.stopped;
    const isScript = isPython(session.configuration);
    const { name, line } = frame;
    const place = placeOf(frame);
    return {
      session,
      threadId,
      frameId: frame.id,
      reason: stopped?.reason ?? "",
      text: stopped?.description ?? stopped?.text ?? "",
      ...place,
      isScript,
      ...(isScript && { graph: name, calls: [], python: { name, path: place.path, line } }),
      ...(frame.source?.adapterData && {
        python: { name, path: pathOf(frame.source.path ?? ""), line },
      }),
    };
  }
}

/** Where a frame stands in its graph, also if it shows Python. */
function placeOf(frame: DebugProtocol.StackFrame): {
  path: string;
  line: number;
  graph: string;
  calls: string[];
} {
  const behind: GraphPlace | undefined = frame.source?.adapterData;
  const path = pathOf(behind?.path ?? frame.source?.path ?? "");
  return { path, line: behind?.line ?? frame.line, ...parseFrame(behind?.name ?? frame.name) };
}

/** The frames of a stop's thread, innermost first. */
export async function stackOf({
  session,
  threadId,
}: Stop): Promise<(ReturnType<typeof placeOf> & { id: number })[]> {
  const answer: DebugProtocol.StackTraceResponse["body"] = await session.customRequest(
    "stackTrace",
    { threadId },
  );
  return answer.stackFrames.map((frame) => ({ id: frame.id, ...placeOf(frame) }));
}

/** Where a stop is in a file: within an op that is a graph of others, its caller. */
export async function inText(stop: Stop): Promise<Stop> {
  if (stop.path !== "") {
    return stop;
  }
  const stack = await stackOf(stop);
  const at = stack.findIndex(({ id }) => id === stop.frameId);
  const around = stack.slice(at).find(({ path }) => path !== "");
  return around === undefined ? stop : { ...stop, ...around, frameId: around.id };
}

function threadOf(stopped: DebugProtocol.StoppedEvent["body"] | undefined): number {
  return stopped?.threadId ?? 1;
}

const SETTING = new Set(["setVariable", "setExpression"]);
const RESUMING = new Set([
  "continue",
  "next",
  "stepIn",
  "stepOut",
  "stepBack",
  "reverseContinue",
  "goto",
  "restartFrame",
]);

/** Where the workbench runs on another machine it hands out URIs of that machine in place of paths. */
function pathOf(source: string): string {
  return /^[a-z][\w+.-]+:\/\//i.test(source) ? vscode.Uri.parse(source).fsPath : source;
}
