/** A debugger without a program: each `next` is stopped at the next line, where there is one value. */

const vscode = require("vscode");

const FIRST = 3;

exports.activate = (context) => {
  context.subscriptions.push(
    vscode.debug.registerDebugAdapterDescriptorFactory("peer", {
      createDebugAdapterDescriptor: (session) =>
        new vscode.DebugAdapterInlineImplementation(new Peer(session.configuration.program)),
    }),
  );
};

class Peer {
  constructor(program) {
    this.program = program;
    this.line = FIRST;
    this.seq = 0;
    this.sent = new vscode.EventEmitter();
    this.onDidSendMessage = this.sent.event;
  }

  dispose() {
    this.sent.dispose();
  }

  send(message) {
    this.seq += 1;
    this.sent.fire({ seq: this.seq, ...message });
  }

  stopped(reason) {
    this.send({ type: "event", event: "stopped", body: { reason, threadId: 1 } });
  }

  handleMessage({ type, command, seq }) {
    if (type !== "request") return;
    this.send({
      type: "response",
      request_seq: seq,
      success: true,
      command,
      body: this.body(command),
    });
    if (command === "launch") this.send({ type: "event", event: "initialized" });
    if (command === "configurationDone") this.stopped("entry");
    if (command === "next") {
      this.line += 1;
      this.stopped("step");
    }
    if (command === "disconnect" || command === "terminate")
      this.send({ type: "event", event: "terminated" });
  }

  body(command) {
    const frame = { id: this.line, name: "main", line: this.line, column: 3 };
    switch (command) {
      case "initialize":
        return { supportsConfigurationDoneRequest: true, supportsDelayedStackTraceLoading: true };
      case "threads":
        return { threads: [{ id: 1, name: "main" }] };
      case "stackTrace":
        return { stackFrames: [{ ...frame, source: { path: this.program } }], totalFrames: 1 };
      case "scopes":
        return { scopes: [{ name: "Values", variablesReference: 1, expensive: false }] };
      case "variables":
        return { variables: [{ name: "line", value: `${this.line}`, variablesReference: 0 }] };
      case "setBreakpoints":
        return { breakpoints: [] };
      default:
        return {};
    }
  }
}
