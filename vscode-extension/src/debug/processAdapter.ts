/** A debugger that runs already, on its standard streams: VS Code itself only talks to those that it starts. */

import type { ChildProcessWithoutNullStreams } from "node:child_process";
import type { DebugProtocol } from "@vscode/debugprotocol";
import * as vscode from "vscode";
import { type Message, StreamMessageReader, StreamMessageWriter } from "vscode-languageclient/node";

export class ProcessAdapter implements vscode.DebugAdapter {
  private readonly sent = new vscode.EventEmitter<vscode.DebugProtocolMessage>();
  private readonly reader: StreamMessageReader;
  private readonly writer: StreamMessageWriter;
  private readonly unanswered = new Map<number, DebugProtocol.Request>();
  private ended = false;
  readonly onDidSendMessage = this.sent.event;

  constructor(private readonly child: ChildProcessWithoutNullStreams) {
    this.reader = new StreamMessageReader(child.stdout);
    this.writer = new StreamMessageWriter(child.stdin);
    this.writer.onError(() => {}); // it has ended, which is told below
    this.reader.listen((message) => {
      const answer = message as unknown as DebugProtocol.Response;
      if (answer.type === "response") {
        this.unanswered.delete(answer.request_seq);
      }
      this.sent.fire(message as unknown as vscode.DebugProtocolMessage);
    });
    child.once("close", () => this.end());
  }

  handleMessage(message: vscode.DebugProtocolMessage): void {
    const request = message as DebugProtocol.Request;
    if (request.type === "request") {
      this.unanswered.set(request.seq, request);
    }
    if (this.ended) {
      this.refuse();
    } else {
      this.writer.write(message as unknown as Message).catch(() => {});
    }
  }

  dispose(): void {
    this.child.kill();
    this.reader.dispose();
    this.writer.dispose();
    this.sent.dispose();
  }

  /** Nobody waits for answers that do not come, and the session is over. */
  private end(): void {
    this.ended = true;
    this.refuse();
    this.sent.fire({ type: "event", event: "terminated", seq: 0 } as vscode.DebugProtocolMessage);
  }

  private refuse(): void {
    const message = "opstep's debugger has ended";
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
