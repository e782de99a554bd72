/**
 * A debugger on its standard streams, one that runs already too. Of one that it starts itself VS Code does not know
 * which signal has ended it.
 */

import type { ChildProcessWithoutNullStreams } from "node:child_process";
import type { DebugProtocol } from "@vscode/debugprotocol";
import * as vscode from "vscode";
import { type Message, StreamMessageReader, StreamMessageWriter } from "vscode-languageclient/node";
import { messageOf } from "../../shared/errors";

export class ProcessAdapter implements vscode.DebugAdapter {
  private readonly sent = new vscode.EventEmitter<vscode.DebugProtocolMessage>();
  private readonly reader: StreamMessageReader;
  private readonly writer: StreamMessageWriter;
  private readonly unanswered = new Map<number, DebugProtocol.Request>();
  private ended = false;
  /** Whether the debugger told the session's end, and whether the user wants it. */
  private told = false;
  private wanted = false;
  private why = "opstep's debugger has ended";
  readonly onDidSendMessage = this.sent.event;

  /** `tell` shows the user why a session is over that nobody has ended. */
  constructor(
    private readonly child: ChildProcessWithoutNullStreams,
    private readonly tell: (why: string) => void,
  ) {
    this.reader = new StreamMessageReader(child.stdout);
    this.writer = new StreamMessageWriter(child.stdin);
    this.writer.onError(() => {}); // it has ended, which is told below
    this.reader.listen((message) => {
      const answer = message as unknown as DebugProtocol.Response;
      if (answer.type === "response") {
        this.unanswered.delete(answer.request_seq);
      }
      this.told ||= (message as unknown as DebugProtocol.Event).event === "terminated";
      this.sent.fire(message as unknown as vscode.DebugProtocolMessage);
    });
    child.on("error", (error) => {
      this.why = `opstep's debugger could not be started: ${messageOf(error)}`;
    });
    child.once("exit", (code, signal) => {
      this.why += signal === null ? ` with exit code ${code}` : `: ${signal}`;
    });
    child.once("close", () => this.end());
  }

  handleMessage(message: vscode.DebugProtocolMessage): void {
    const request = message as DebugProtocol.Request;
    if (request.type === "request") {
      this.unanswered.set(request.seq, request);
      this.wanted ||= request.command === "disconnect";
    }
    if (this.ended) {
      this.refuse();
    } else {
      this.writer.write(message as unknown as Message).catch(() => {});
    }
  }

  dispose(): void {
    this.wanted = true;
    this.child.kill();
    this.reader.dispose();
    this.writer.dispose();
    this.sent.dispose();
  }

  /** Nobody waits for answers that do not come, and the session is over. */
  private end(): void {
    this.ended = true;
    this.refuse();
    if (!this.told && !this.wanted) {
      this.event("output", { category: "stderr", output: `${this.why}\n` });
      this.tell(this.why);
    }
    if (!this.told) {
      this.event("terminated");
    }
  }

  private event(event: string, body?: object): void {
    this.sent.fire({ type: "event", event, seq: 0, body } as vscode.DebugProtocolMessage);
  }

  private refuse(): void {
    const message = this.why;
    for (const { seq, command } of this.unanswered.values()) {
      this.unanswered.delete(seq);
      const answer = {
        type: "response",
        seq: 0,
        request_seq: seq,
        success: false,
        command,
        message,
        body: {},
      };
      this.sent.fire(answer as vscode.DebugProtocolMessage);
    }
  }
}
