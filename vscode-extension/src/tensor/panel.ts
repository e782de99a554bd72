/** One panel of the Tensor view: its subject, the frame it follows, its calls to the debugger. */

import path from "node:path";
import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import type {
  Call,
  Calls,
  FrameLocation,
  HostMessage,
  PageMessage,
  Subject,
  ViewState,
} from "../../shared/tensor/messages";
import { type Filters, saveFile } from "../dialogs";
import { showLine } from "../editor";
import type { Services, Stop } from "../services";
import { stackOf } from "../stops";
import { Panel } from "../webview";
import { call, openTensor, type SendRequest, type Target } from "./requests";

const FILTERS: Record<string, Filters> = {
  ".png": { "PNG picture": ["png"] },
  ".npy": { "NumPy array": ["npy"] },
};
const REMEMBERED = 200; // expressions whose view is kept
const KEY = "opstep.tensorViews";

/** Views of expressions, from one session to the next. */
export class ViewMemory {
  constructor(private readonly state: vscode.Memento) {}

  get(expression: string): ViewState | undefined {
    return this.all()[expression];
  }

  put(expression: string, view: ViewState): void {
    const { [expression]: _, ...others } = this.all();
    const recent = Object.entries(others).slice(1 - REMEMBERED);
    void this.state.update(KEY, Object.fromEntries([...recent, [expression, view]]));
  }

  private all(): Record<string, ViewState> {
    return this.state.get<Record<string, ViewState>>(KEY, {});
  }
}

export class TensorPanel implements vscode.Disposable {
  private readonly panel: Panel<PageMessage, HostMessage>;
  private stop: Stop | undefined;
  private turn = 0;
  /** The graph whose frame it stays with. */
  private pinned: string | undefined;
  private frameId = -1;
  /** Whether its page was told what to show: what is sent before it is loaded waits for it. */
  private opened = false;
  private readyCount = 0;
  /** Asked for while the page is being loaded. */
  private first: Promise<Extract<HostMessage, { kind: "open" }>>;
  readonly onDidDispose: vscode.Event<void>;

  constructor(
    private readonly services: Services,
    private readonly memory: ViewMemory,
    private subject: Subject,
    restored?: vscode.WebviewPanel,
  ) {
    this.stop = services.stop;
    this.frameId = this.stop?.frameId ?? -1;
    this.first = this.openMessage();
    this.panel = new Panel<PageMessage, HostMessage>(services.context, {
      name: "tensor",
      title: this.title,
      inline: true,
      panel: restored,
    });
    this.onDidDispose = this.panel.onDidDispose;
    this.panel.onMessage((message) => void this.receive(message));
    void this.sendOpen();
  }

  private async sendOpen(): Promise<void> {
    void this.panel.post(await this.first);
    this.opened = true;
    if (!this.stop) {
      void this.panel.post({ kind: "ended" });
    }
  }

  dispose(): void {
    this.panel.dispose();
  }

  shows(subject: Subject): boolean {
    return (
      this.subject.expression === subject.expression &&
      this.subject.memoryReference === subject.memoryReference &&
      !this.pinned
    );
  }

  /** Brings it to the front, at an element. */
  reveal(index: number[] | undefined): void {
    this.panel.reveal();
    if (index) {
      void this.panel.post({ kind: "show", index: index });
    }
  }

  /** The run stands elsewhere; or goes on. */
  async follow(stop: Stop | undefined): Promise<void> {
    if (!stop) {
      void this.panel.post({ kind: "running" });
      return;
    }
    this.stop = stop;
    this.turn++;
    const { turn } = this;
    const frameId = await this.frameOf(stop);
    if (turn !== this.turn) {
      return;
    }
    this.frameId = frameId;
    void this.panel.post({ kind: "stop", location: this.location });
  }

  /** A session is gone; the last picture stays. */
  ended(session: vscode.DebugSession): void {
    if (this.stop?.session === session) {
      void this.panel.post({ kind: "ended" });
    }
  }

  private get title(): string {
    return `Tensor: ${this.subject.label ?? this.subject.expression}`;
  }

  private get location(): FrameLocation {
    const { stop } = this;
    return {
      turn: this.turn,
      graph: this.pinned ?? stop?.graph ?? "",
      file: stop?.path ?? "",
      line: stop?.line ?? 0,
      pinned: this.pinned !== undefined,
    };
  }

  private get target(): Target {
    const { memoryReference } = this.subject;
    return { frameId: this.frameId, ...(memoryReference ? { memoryReference } : {}) };
  }

  private readonly send: SendRequest = async (command, args) => {
    if (!this.stop) {
      throw new Error("no run is stopped: press F5");
    }
    if (this.frameId < 0) {
      throw new Error(`${this.pinned} is not on the call stack`);
    }
    return await this.stop.session.customRequest(command, args);
  };

  /** The frame it looks from: the chosen one, or the innermost of the graph that it stays with. */
  private async frameOf(stop: Stop): Promise<number> {
    if (this.pinned === undefined || this.pinned === stop.graph) {
      return stop.frameId;
    }
    const stack = await stackOf(stop);
    return stack.find((frame) => frame.graph === this.pinned)?.id ?? -1;
  }

  private async openMessage(): Promise<Extract<HostMessage, { kind: "open" }>> {
    const { subject } = this;
    const view = this.memory.get(subject.expression);
    const opened = { kind: "open", subject, view, location: this.location } as const;
    try {
      return {
        ...opened,
        ...(await openTensor(this.send, this.target, subject.expression, view, subject.shape)),
      };
    } catch (error) {
      return { ...opened, error: messageOf(error) };
    }
  }

  // --- messages from the page ---

  private async receive(message: PageMessage): Promise<void> {
    switch (message.kind) {
      case "ready":
        // The first one crosses what it is told already; another is a page that was loaded again.
        if (this.readyCount++ > 0 && this.opened) {
          this.first = this.openMessage();
          await this.sendOpen();
        }
        break;
      case "call":
        await this.answerCall(message.id, message.turn, message.name, message.arguments);
        break;
      case "view":
        this.memory.put(message.expression, message.view);
        break;
      case "subject":
        this.subject = { expression: message.expression };
        this.panel.title = this.title;
        void this.panel.post(await this.openMessage());
        break;
      case "pin":
        this.pinned = message.pinned ? this.stop?.graph : undefined;
        await this.follow(this.services.stop);
        break;
      case "reveal":
        await this.goToLine();
        break;
      case "nan":
        await vscode.commands.executeCommand("opstep.showNanReport", this.subject);
        break;
      default:
        this.services.log.debug(`${this.title}: ${Math.round(message.milliseconds)} ms to draw`);
    }
  }

  private async answerCall(id: number, turn: number, name: Call, args: unknown): Promise<void> {
    if (turn !== this.turn) {
      void this.panel.post({ kind: "answer", id, error: "the run has continued" });
      return;
    }
    try {
      const found =
        name === "save"
          ? await save(args as Calls["save"]["arguments"])
          : await call(this.send, this.target, name, args as never);
      void this.panel.post({ kind: "answer", id, answer: found });
    } catch (error) {
      void this.panel.post({ kind: "answer", id, error: messageOf(error) });
    }
  }

  private async goToLine(): Promise<void> {
    const { file, line } = this.location;
    if (file) {
      await showLine(vscode.Uri.file(file), line - 1);
    }
  }
}

export async function save({
  name,
  bytes,
}: Calls["save"]["arguments"]): Promise<{ saved: boolean }> {
  return { saved: await saveFile(name, bytes, FILTERS[path.extname(name)]) };
}
