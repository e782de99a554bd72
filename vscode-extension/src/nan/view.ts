/** The NaN report: from a tensor that is not finite back to where that began, and why. */

import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import type { Finding, FromNanPage, Link, NanReport, ToNanPage } from "../../shared/nan/messages";
import { sentence } from "../../shared/nan/report";
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
    vscode.commands.registerCommand("opstep.showNanReport", (given?: unknown) => view.show(given)),
    vscode.commands.registerCommand("opstep.showFindings", (file?: vscode.Uri | string) =>
      view.showFindings(file),
    ),
  );
}

class NanView implements vscode.Disposable {
  private panel: Panel<FromNanPage, ToNanPage> | undefined;
  private message: ToNanPage | undefined;
  private report: NanReport | undefined;
  private findings: Finding[] = [];
  private of: Stop | undefined;
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
  async show(given: unknown): Promise<void> {
    const { stop } = this.services;
    if (!stop) {
      void vscode.window.showInformationMessage(
        "A NaN is followed back while a run is stopped: start one with F5, or hunt one.",
      );
      return;
    }
    const subject = given === undefined && isNan(stop) ? undefined : this.subject(given, stop);
    await this.follow(stop, subject);
  }

  private subject(given: unknown, stop: Stop): Subject | undefined {
    const found = subjectOf(given, vscode.window.activeTextEditor);
    return found ?? (isNan(stop) ? undefined : { expression: "" });
  }

  private async follow(stop: Stop, subject: Subject | undefined, quiet = false): Promise<void> {
    if (subject && !subject.expression) {
      void vscode.window.showInformationMessage("Put the cursor on the value that is asked about.");
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
      this.of = stop;
      setNanPath(pathOf(report, stop.path));
      const title = subject?.label ?? expression ?? report.links[0]?.name ?? "";
      const where = `${stop.graph}:${stop.line}`;
      this.tell({ kind: "report", report, title, where, held: true });
    } catch (error) {
      if (!quiet) {
        this.tell({ kind: "error", text: messageOf(error) });
      }
    }
  }

  /** What went wrong in the runs of a workspace. */
  async showFindings(given: vscode.Uri | string | undefined): Promise<void> {
    const file =
      typeof given === "string"
        ? given
        : (given?.fsPath ?? (await browse("Workspace", WORKSPACES))?.fsPath);
    if (!file) {
      return;
    }
    const told = await this.services.opstep(["ws", file, "sql", FINDINGS, "--json"]);
    if (told.code !== 0) {
      void vscode.window.showErrorMessage(told.stderr.trim() || `${file} cannot be read.`);
      return;
    }
    this.findings = JSON.parse(told.stdout) as Finding[];
    this.tell({ kind: "findings", findings: this.findings, title: file });
  }

  private async stopped(stop: Stop | undefined): Promise<void> {
    if (this.of && stop?.session !== this.of.session) {
      setNanPath(undefined);
    }
    if (stop && isNan(stop)) {
      const opens = vscode.workspace.getConfiguration("opstep").get("nanReport.openOnStop", true);
      if (opens || this.panel) {
        await this.follow(stop, undefined, true);
      }
      return;
    }
    if (this.of && stop?.frameId !== this.of.frameId && this.message?.kind === "report") {
      void this.panel?.post({ kind: "stale" });
      this.message = { ...this.message, held: false };
    }
  }

  private tell(message: ToNanPage): void {
    this.message = message;
    if (!this.panel) {
      this.ready = false;
      this.panel = new Panel<FromNanPage, ToNanPage>(this.services.context, {
        name: "nan",
        title: "NaN Report",
      });
      this.panel.onDidDispose(() => {
        this.panel = undefined;
        setNanPath(undefined);
      });
      this.panel.onMessage((m) => void this.take(m));
    } else if (this.ready) {
      void this.panel.post(message);
      this.panel.reveal();
    }
  }

  private async take(message: FromNanPage): Promise<void> {
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
    return this.report ? `${sentence(this.report)}\n\n${this.report.text}\n` : "";
  }

  private async line(link: Link | undefined): Promise<void> {
    if (link?.source?.path && link.line) {
      await openLine(link.source.path, link.line);
    } else if (link?.source?.sourceReference && link.line && this.of) {
      const uri = vscode.debug.asDebugSourceUri(
        { name: link.source.name, sourceReference: link.source.sourceReference },
        this.of.session,
      );
      await showLine(uri, link.line - 1);
    }
  }

  /** Opens the Tensor view of a link, or of one of its op's operands, at an element. */
  private async element(message: Extract<FromNanPage, { kind: "element" }>): Promise<void> {
    const link = this.report?.links[message.link];
    const operand = link?.operands?.find((o) => o.operand === message.operand);
    const tensor = message.operand === undefined ? link : operand;
    if (!tensor) {
      return;
    }
    const { expression, memoryReference, name } = tensor;
    const subject: Subject = expression
      ? { expression, place: message.place }
      : { expression: "value", memoryReference, label: name || "literal", place: message.place };
    await vscode.commands.executeCommand("opstep.openTensor", subject);
  }
}

/** Whether a run stands because something is not finite. */
function isNan(stop: Stop): boolean {
  return stop.reason === "exception" && /\b(nan|inf|infinity)\b/i.test(stop.text);
}

async function openLine(path: string, line: number): Promise<void> {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  const uri =
    path.startsWith("/") || !folder ? vscode.Uri.file(path) : vscode.Uri.joinPath(folder, path);
  await showLine(uri, line - 1);
}
