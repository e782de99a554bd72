/** The NaN report: from a tensor that is not finite back to where that began, and why. */

import path from "node:path";
import * as vscode from "vscode";
import { messageOf } from "../../shared/errors";
import type { Finding, HostMessage, Link, NanReport, PageMessage } from "../../shared/nan/messages";
import { summarize } from "../../shared/nan/report";
import type { Subject } from "../../shared/tensor/messages";
import { browse, WORKSPACES } from "../dialogs";
import { showLine } from "../editor";
import type { Services, Stop } from "../services";
import { subjectOf } from "../tensor/subjects";
import { worked } from "../walkthrough";
import { Panel } from "../webview";
import { type Again, debugThere } from "./again";
import { setNanPath } from "./current";
import { type FoundByHunt, type FoundInRun, onHunted, onRecorded } from "./found";
import { registerHunt } from "./hunt";
import { Marks } from "./marks";
import { pathOf } from "./path";
import { type Recorded, reportOfFinding, reportOfHunt, resultOf } from "./reports";
import { isNanStop, oddResult } from "./stops";

const FINDINGS = `select findings.id, runs.key as run, findings.step, findings.kind, findings.value,
 ops.name as op, findings.file, findings.line, findings.message from findings
 join runs on runs.id = findings.run
 left join ops on ops.run = findings.run and ops.op = findings.op
 order by findings.id desc limit 500`;

/** The report that is shown: what it is of, and how a session gets there again. */
interface Shown {
  message: Extract<HostMessage, { kind: "report" }>;
  /** Of a run that stands, or stood. */
  stop?: Stop;
  subject?: Subject;
  again: Again;
}

export function register(services: Services): vscode.Disposable {
  const view = new NanView(services);
  const command = (name: string, act: (argument: never) => Promise<void>) =>
    vscode.commands.registerCommand(`opstep.${name}`, async (argument?: unknown) => {
      try {
        await act(argument as never);
      } catch (error) {
        void vscode.window.showErrorMessage(messageOf(error));
      }
    });
  return vscode.Disposable.from(
    view,
    registerHunt(services),
    command("showNanReport", (argument?: unknown) => view.show(argument)),
    command("showLastNanReport", () => view.showLast()),
    command("debugThere", (link?: number) => view.debugThere(link)),
    command("showFindings", (file?: vscode.Uri | string) => view.showFindings(file)),
  );
}

class NanView implements vscode.Disposable {
  private panel: Panel<PageMessage, HostMessage> | undefined;
  private message: HostMessage | undefined;
  private shown: Shown | undefined;
  private findings: { rows: Finding[]; workspace: string } = { rows: [], workspace: "" };
  private ready = false;
  private readonly marks = new Marks();
  private readonly disposables: vscode.Disposable[] = [this.marks];

  constructor(private readonly services: Services) {
    this.disposables.push(
      services.onStop((stop) => void this.stopped(stop)),
      vscode.debug.registerDebugAdapterTrackerFactory("opstep", {
        createDebugAdapterTracker: () => {
          this.outdate();
          return {
            onWillReceiveMessage: ({ command }) => command === "restart" && this.outdate(),
          };
        },
      }),
      onHunted((found) => void this.hunted(found)),
      onRecorded((found) =>
        this.recorded(found).catch((error) => this.post({ kind: "error", text: messageOf(error) })),
      ),
    );
  }

  dispose(): void {
    vscode.Disposable.from(...this.disposables).dispose();
    this.panel?.dispose();
  }

  // -- what reports are of

  /** A report on a tensor; without one, on what stopped the run, or the last one. */
  async show(argument: unknown): Promise<void> {
    const { stop } = this.services;
    if (!stop) {
      await this.showLast();
      return;
    }
    const subject =
      argument === undefined && isNanStop(stop) ? undefined : this.subject(argument, stop);
    await this.follow(stop, subject);
  }

  async showLast(): Promise<void> {
    if (this.message) {
      this.post(this.message);
      return;
    }
    const hunt = "Hunt NaN";
    const picked = await vscode.window.showInformationMessage(
      "There is no NaN report yet: stop a run where a value has NaNs, or let opstep hunt one.",
      hunt,
    );
    if (picked === hunt) {
      await vscode.commands.executeCommand("opstep.hunt");
    }
  }

  private subject(argument: unknown, stop: Stop): Subject | undefined {
    const found = subjectOf(argument, vscode.window.activeTextEditor, stop.isScript);
    return found ?? (isNanStop(stop) ? undefined : { expression: "" });
  }

  /** What the debugger knows of a tensor at a stop; `quiet`: nothing is said where it knows nothing. */
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
      if (this.services.stop?.session !== stop.session) {
        return; // it has gone on meanwhile
      }
      const asked = subject?.label ?? expression ?? report.links[0]?.name;
      const title = asked ?? this.shown?.message.title ?? "";
      const { python } = stop;
      const where = python
        ? `${python.name}, ${path.basename(python.path)}:${python.line}`
        : `${stop.graph}:${stop.line}`;
      setNanPath(pathOf(report, stop.path));
      await this.display({
        message: { kind: "report", report, title, where, state: "live" },
        stop,
        ...(subject && { subject }),
        again: { config: stop.session.configuration, folder: stop.session.workspaceFolder },
      });
    } catch (error) {
      if (!quiet) {
        this.post({ kind: "error", text: messageOf(error) });
      }
    }
  }

  private async hunted({ hunted, again }: FoundByHunt): Promise<void> {
    const base = again.config.cwd ?? again.folder?.uri.fsPath ?? "";
    const report = reportOfHunt(hunted, (file) => path.resolve(base, file));
    const name = path.basename(String(again.config.program));
    const step = hunted.step ? `, step ${hunted.step}` : "";
    const graph = hunted.graph && hunted.graph !== name ? `: ${hunted.graph}` : "";
    const where = `${name}${graph}${step}`;
    setNanPath(pathOf(wayOf(report), report.links[0]?.source?.path ?? ""));
    await this.display({
      message: { kind: "report", report, title: resultOf(hunted), where, state: "past" },
      again,
    });
    await this.toLine(report.links[0], false);
  }

  private async recorded({ finding, workspace }: FoundInRun): Promise<void> {
    const recorded = await this.services.request<Recorded>("opstep/workspace/report", {
      path: workspace,
      run: finding.run,
      finding: finding.id,
    });
    const report = reportOfFinding(finding, recorded);
    const program = report.links[0]?.source?.path ?? `${finding.run}.opg`;
    const folder = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(workspace));
    const config = {
      type: "opstep",
      request: "launch",
      name: `${path.basename(program)}: run ${finding.run}`,
      program,
      workspace,
      run: finding.run,
    };
    const step = finding.step === null ? "" : `, step ${finding.step}`;
    const where = `run ${finding.run} of ${path.basename(workspace)}${step}`;
    const title = finding.value ?? "a value";
    await this.display({
      message: { kind: "report", report, title, where, state: "past" },
      again: { config, folder },
    });
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
    this.findings = { rows: JSON.parse(result.stdout) as Finding[], workspace: file };
    this.shown = undefined;
    this.post({ kind: "findings", findings: this.findings.rows, title: file });
  }

  // -- following the run

  private async stopped(stop: Stop | undefined): Promise<void> {
    const { shown } = this;
    if (stop && shown?.stop && stop.session !== shown.stop.session) {
      setNanPath(undefined);
    }
    const result = stop && oddResult(stop);
    const again = stop !== undefined && shown?.stop?.frameId === stop.frameId;
    if (stop && again && shown.stop?.session === stop.session && shown.message.state === "live") {
      // Values were changed, or the frame was chosen once more: the same question has a new answer.
      await this.follow(stop, shown.subject, true);
    } else if (stop && (result || isNanStop(stop))) {
      const opens = vscode.workspace.getConfiguration("opstep").get("nanReport.openOnStop", true);
      if (opens || this.panel) {
        await this.follow(stop, result ? { expression: result } : undefined, true);
      }
    } else if (shown?.stop && shown.message.state === "live" && !again) {
      this.setOld(shown, { state: "old" });
    }
  }

  /** Another run begins: what was found in the last one is no longer what the editor shows. */
  private outdate(): void {
    setNanPath(undefined);
    void this.marks.show(undefined);
    if (this.shown) {
      const { state } = this.shown.message;
      this.setOld(this.shown, { state: state === "live" ? "old" : state, outdated: true });
    }
  }

  private setOld(shown: Shown, how: Pick<Shown["message"], "state" | "outdated">): void {
    this.shown = { ...shown, message: { ...shown.message, ...how } };
    if (this.message === shown.message) {
      this.message = this.shown.message; // else a list of findings is in view
      void this.panel?.post({ kind: "stale" });
    }
  }

  // -- going there

  /** A session that stands behind the op of a link: this one, which goes back, or another. */
  async debugThere(number?: number): Promise<void> {
    const { shown } = this;
    const links = shown?.message.report.links ?? [];
    const link = links[number ?? links.findIndex((l) => l.kind === "origin")];
    if (!shown || !link) {
      await this.showLast();
      return;
    }
    const { session } = shown.stop ?? {};
    const live = shown.message.state === "live" && session === this.services.stop?.session;
    if (live && link.here) {
      void vscode.window.showInformationMessage(`The run stands behind ${link.name} already.`);
      return;
    }
    if (session && live && link.memoryReference) {
      const { memoryReference } = link;
      const went = await session.customRequest("opstep/goToOp", { memoryReference }).then(
        () => true,
        (error) => this.services.log.info(`opstep/goToOp: ${messageOf(error)}`),
      );
      if (went) {
        return;
      }
    }
    if (session && live && shown.stop?.isScript) {
      // As far as it is recorded: else an error says that it is not.
      const { source, line } = link;
      await session.customRequest("opstep/goToOp", { path: source?.path, line });
      return;
    }
    const old = session ?? this.services.stop?.session;
    if (old && old.configuration.program === shown.again.config.program) {
      await vscode.debug.stopDebugging(old);
    }
    const { again } = shown;
    await vscode.debug.startDebugging(again.folder, debugThere(again, link.name, link.line));
  }

  private async toLine(link: Link | undefined, focus = true): Promise<void> {
    const { stop } = this.shown ?? {};
    if (link?.source?.path && link.line) {
      await openLine(link.source.path, link.line, focus);
    } else if (link?.source?.sourceReference && link.line && stop) {
      const uri = vscode.debug.asDebugSourceUri(
        { name: link.source.name, sourceReference: link.source.sourceReference },
        stop.session,
      );
      await showLine(uri, link.line - 1);
    }
  }

  /** Opens the Tensor view of a link, or of one of its op's operands, at an element. */
  private async element(message: Extract<PageMessage, { kind: "element" }>): Promise<void> {
    const link = this.shown?.message.report.links[message.link];
    const operand = link?.operands?.find((o) => o.operand === message.operand);
    const tensor = message.operand === undefined ? link : operand;
    if (!tensor) {
      return;
    }
    const { expression, memoryReference, name } = tensor;
    const subject: Subject = expression
      ? { expression, index: message.place }
      : {
          expression: "value",
          ...(memoryReference && { memoryReference }),
          label: name || "literal",
          index: message.place,
        };
    await vscode.commands.executeCommand("opstep.openTensor", subject);
  }

  // -- the page

  private async display(shown: Shown): Promise<void> {
    this.shown = shown;
    this.post(shown.message);
    worked("nan");
    await this.marks.show(shown.message.report);
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
        await this.toLine(this.shown?.message.report.links[message.link]);
        break;
      case "place":
        await openLine(message.path, message.line);
        break;
      case "debug":
        await vscode.commands.executeCommand("opstep.debugThere", message.link);
        break;
      case "element":
        await this.element(message);
        break;
      case "finding": {
        const finding = this.findings.rows[message.finding];
        if (finding) {
          await this.recorded({ finding, workspace: this.findings.workspace });
          await this.toLine(this.shown?.message.report.links[0], false);
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
      return this.findings.rows.map(line).join("\n");
    }
    const report = this.shown?.message.report;
    return report ? `${summarize(report)}\n\n${report.text}\n` : "";
  }
}

/** A hunt's first origin and its way to a result, for views that colour it: as the debugger's reports have it. */
function wayOf(report: NanReport): NanReport {
  const [first] = report.links;
  const way = (first?.way ?? []).map(
    ({ name, line, path: file, through }): Link => ({
      kind: "propagated",
      name,
      type: "",
      text: "",
      ...(file && { source: { path: file } }),
      ...(line && { line }),
      ...(through && { through }),
    }),
  );
  return { ...report, links: [...way.reverse(), ...(first ? [first] : [])] };
}

async function openLine(file: string, line: number, focus = true): Promise<void> {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  const uri =
    path.isAbsolute(file) || !folder ? vscode.Uri.file(file) : vscode.Uri.joinPath(folder, file);
  await showLine(uri, line - 1, { focus });
}
