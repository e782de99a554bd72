/** The NaN report: from a tensor that is not finite back to where that began, and why. */

import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import type { Finding, HostMessage, Link, NanReport, PageMessage } from "../../shared/nan/messages";
import { summarize } from "../../shared/nan/report";
import type { Subject } from "../../shared/tensor/messages";
import { browse, WORKSPACES } from "../dialogs";
import { showLine } from "../editor";
import type { Services, Stop } from "../services";
import { subjectOf } from "../tensor/subjects";
import { Panel } from "../webview";
import { setNanPath } from "./current";
import { pathOf } from "./path";

const FINDINGS = `select runs.key as run, findings.step, findings.kind, findings.value,
 ops.name as op, findings.file, findings.line, findings.message from findings
 join runs on runs.id = findings.run
 left join ops on ops.run = findings.run and ops.op = findings.op
 order by findings.id desc limit 500`;

export function register(services: Services): vscode.Disposable {
  const view = new NanView(services);
  return vscode.Disposable.from(
    view,
    vscode.commands.registerCommand("opstep.showNanReport", (argument?: unknown) =>
      view.show(argument),
    ),
    vscode.commands.registerCommand("opstep.showFindings", (file?: vscode.Uri | string) =>
      view.showFindings(file),
    ),
  );
}

class NanView implements vscode.Disposable {
  private panel: Panel<PageMessage, HostMessage> | undefined;
  private message: HostMessage | undefined;
  private report: NanReport | undefined;
  private findings: Finding[] = [];
  private reportStop: Stop | undefined;
  private ready = false;
  private readonly disposables: vscode.Disposable[] = [];

  constructor(private readonly services: Services) {
    this.disposables.push(services.onStop((stop) => void this.stopped(stop)));
  }

  dispose(): void {
    vscode.Disposable.from(...this.disposables).dispose();
    this.panel?.dispose();
  }

  /** A report on a tensor; without one, on what stopped the run. */
  async show(argument: unknown): Promise<void> {
    const { stop } = this.services;
    if (!stop) {
      void vscode.window.showInformationMessage(
        "A NaN can be traced while a run is stopped: press F5, or use Hunt NaN.",
      );
      return;
    }
    const subject =
      argument === undefined && isNanStop(stop) ? undefined : this.subject(argument, stop);
    await this.follow(stop, subject);
  }

  private subject(argument: unknown, stop: Stop): Subject | undefined {
    const found = subjectOf(argument, vscode.window.activeTextEditor);
    return found ?? (isNanStop(stop) ? undefined : { expression: "" });
  }

  private async follow(stop: Stop, subject: Subject | undefined, quiet = false): Promise<void> {
    if (subject && !subject.expression) {
      void vscode.window.showInformationMessage("Place the cursor on a value first.");
      return;
    }
    const { memoryReference, expression } = subject ?? {};
    const of = memoryReference ? { memoryReference } : expression ? { name: expression } : {};
    try {
      const report: NanReport = await stop.session.customRequest("opstep/nanReport", {
        frameId: stop.frameId,
        ...of,
      });
      this.report = report;
      this.reportStop = stop;
      setNanPath(pathOf(report, stop.path));
      const title = subject?.label ?? expression ?? report.links[0]?.name ?? "";
      const where = `${stop.graph}:${stop.line}`;
      this.post({ kind: "report", report, title, where, current: true });
    } catch (error) {
      if (!quiet) {
        this.post({ kind: "error", text: messageOf(error) });
      }
    }
  }

  /** What went wrong in the runs of a workspace. */
  async showFindings(argument: vscode.Uri | string | undefined): Promise<void> {
    const file =
      typeof argument === "string"
        ? argument
        : (argument?.fsPath ?? (await browse("Workspace", WORKSPACES))?.fsPath);
    if (!file) {
      return;
    }
    const result = await this.services.opstep(["ws", file, "sql", FINDINGS, "--json"]);
    if (result.code !== 0) {
      void vscode.window.showErrorMessage(result.stderr.trim() || `${file} cannot be read.`);
      return;
    }
    this.findings = JSON.parse(result.stdout) as Finding[];
    this.post({ kind: "findings", findings: this.findings, title: file });
  }

  private async stopped(stop: Stop | undefined): Promise<void> {
    if (this.reportStop && stop?.session !== this.reportStop.session) {
      setNanPath(undefined);
    }
    if (stop && isNanStop(stop)) {
      const opens = vscode.workspace.getConfiguration("opstep").get("nanReport.openOnStop", true);
      if (opens || this.panel) {
        await this.follow(stop, undefined, true);
      }
      return;
    }
    if (
      this.reportStop &&
      stop?.frameId !== this.reportStop.frameId &&
      this.message?.kind === "report"
    ) {
      void this.panel?.post({ kind: "stale" });
      this.message = { ...this.message, current: false };
    }
  }

  private post(message: HostMessage): void {
    this.message = message;
    if (!this.panel) {
      this.ready = false;
      this.panel = new Panel<PageMessage, HostMessage>(this.services.context, {
        name: "nan",
        title: "NaN Report",
      });
      this.panel.onDidDispose(() => {
        this.panel = undefined;
        setNanPath(undefined);
      });
      this.panel.onMessage((m) => void this.receive(m));
    } else if (this.ready) {
      void this.panel.post(message);
      this.panel.reveal();
    }
  }

  private async receive(message: PageMessage): Promise<void> {
    switch (message.kind) {
      case "ready":
        this.ready = true;
        if (this.message) {
          void this.panel?.post(this.message);
        }
        break;
      case "line":
        await this.line(this.report?.links[message.link]);
        break;
      case "element":
        await this.element(message);
        break;
      case "finding": {
        const finding = this.findings[message.finding];
        if (finding?.file) {
          await openLine(finding.file, finding.line);
        }
        break;
      }
      default:
        await vscode.env.clipboard.writeText(this.text());
        void vscode.window.setStatusBarMessage("NaN report copied", 2000);
    }
  }

  private text(): string {
    if (this.message?.kind === "findings") {
      const line = (f: Finding) =>
        `${f.kind}\t${f.value}\t${f.file}:${f.line}\t${f.message}\trun ${f.run}, step ${f.step ?? ""}`;
      return this.findings.map(line).join("\n");
    }
    return this.report ? `${summarize(this.report)}\n\n${this.report.text}\n` : "";
  }

  private async line(link: Link | undefined): Promise<void> {
    if (link?.source?.path && link.line) {
      await openLine(link.source.path, link.line);
    } else if (link?.source?.sourceReference && link.line && this.reportStop) {
      const uri = vscode.debug.asDebugSourceUri(
        { name: link.source.name, sourceReference: link.source.sourceReference },
        this.reportStop.session,
      );
      await showLine(uri, link.line - 1);
    }
  }

  /** Opens the Tensor view of a link, or of one of its op's operands, at an element. */
  private async element(message: Extract<PageMessage, { kind: "element" }>): Promise<void> {
    const link = this.report?.links[message.link];
    const operand = link?.operands?.find((o) => o.operand === message.operand);
    const tensor = message.operand === undefined ? link : operand;
    if (!tensor) {
      return;
    }
    const { expression, memoryReference, name } = tensor;
    const subject: Subject = expression
      ? { expression, index: message.place }
      : { expression: "value", memoryReference, label: name || "literal", index: message.place };
    await vscode.commands.executeCommand("opstep.openTensor", subject);
  }
}

/** Whether a run stands because something is not finite. */
function isNanStop(stop: Stop): boolean {
  return stop.reason === "exception" && /\b(nan|inf|infinity)\b/i.test(stop.text);
}

async function openLine(path: string, line: number): Promise<void> {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  const uri =
    path.startsWith("/") || !folder ? vscode.Uri.file(path) : vscode.Uri.joinPath(folder, path);
  await showLine(uri, line - 1);
}
