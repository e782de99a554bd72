/** The debugger's side of the workbench. */

import { expect, type Locator, type Page } from "@playwright/test";

import type { Workbench } from "./workbench";

const STOPPED = ".debug-top-stack-frame-line";

export class Debugging {
  private readonly page: Page;
  private configured = 0;
  private chosenName: string | undefined;
  /** Exception filters as they were before a test changed them. */
  private readonly before = new Map<string | RegExp, boolean>();

  constructor(private readonly workbench: Workbench) {
    this.page = workbench.page;
  }

  // -- keys

  async pressF5(): Promise<void> {
    await this.workbench.press("F5");
  }

  /** Writes the launch.json, and waits until F5 would start the first. */
  async configure(...configurations: Record<string, unknown>[]): Promise<void> {
    const named = configurations.map((c) => ({ name: `graph ${++this.configured}`, ...c }));
    await this.workbench.folder.launch(...named);
    await expect(this.chosen()).toContainText(`${named[0].name} (`);
    this.chosenName = named[0].name;
  }

  /** Its launch.json is gone: waits until F5 would not start it any more. */
  async expectForgotten(): Promise<void> {
    if (this.chosenName) await expect(this.chosen()).not.toContainText(`${this.chosenName} (`);
    this.chosenName = undefined;
  }

  private chosen(): Locator {
    return this.page.locator('.statusbar-item[id="status.debug"]');
  }

  /** The only configuration is this one; F5 in its program's editor stops at the entry, this line. */
  async enter(
    configuration: { program: string; [more: string]: unknown },
    line: number,
  ): Promise<void> {
    await this.configure({ ...configuration, stopOnEntry: true });
    await this.workbench.openFile(configuration.program.split("/").at(-1) as string);
    await this.pressF5();
    await this.expectStoppedAt(line);
  }

  async next(): Promise<void> {
    await this.workbench.press("F10");
  }

  async stepIn(): Promise<void> {
    await this.workbench.press("F11");
  }

  async stepOut(): Promise<void> {
    await this.workbench.press("Shift+F11");
  }

  /** A button of the toolbar: Step Back, Reverse, Restart, Stop. */
  async button(name: string): Promise<void> {
    const button = this.page.locator(`.debug-toolbar .action-label[aria-label^="${name}"]`);
    await expect(button).not.toHaveClass(/\bdisabled\b/); // which takes clicks, and does nothing
    await button.click();
  }

  async stop(): Promise<void> {
    await this.workbench.press("Shift+F5");
    await this.expectEnded();
  }

  // -- where it stands

  async expectStoppedAt(line: number): Promise<void> {
    await expect
      .poll(() => this.workbench.lineOf(STOPPED), { message: "the line that is next" })
      .toBe(line);
  }

  async expectEnded(): Promise<void> {
    await expect(this.page.locator(".debug-toolbar")).toBeHidden();
    await expect(this.workbench.editor().locator(STOPPED)).toHaveCount(0);
  }

  /** Sets a breakpoint where the cursor is put, with F9: deaf until extensions have been read. */
  async setBreakpoint(line: number): Promise<void> {
    await this.workbench.goTo(line);
    const marks = this.workbench.editor().locator("[class*=codicon-debug-breakpoint]");
    const before = await marks.count();
    await expect(async () => {
      if ((await marks.count()) <= before) await this.workbench.press("F9"); // again, it takes it away
      await expect(marks).toHaveCount(before + 1, { timeout: 10_000 });
    }).toPass();
  }

  /** A condition, or a message, for a breakpoint of the line that the cursor is put on. */
  async setCondition(
    line: number,
    kind: "Conditional Breakpoint" | "Logpoint",
    text: string,
  ): Promise<void> {
    await this.workbench.goTo(line);
    await this.workbench.command(`Debug: Add ${kind}...`);
    const input = this.page.locator(".breakpoint-widget .inputContainer .monaco-editor").last();
    await expect(input).toBeVisible();
    await input.locator(".view-lines").click();
    await this.workbench.type(text);
    await this.workbench.press("Enter");
    await expect(this.page.locator(".breakpoint-widget")).toHaveCount(0);
  }

  /** A tensor under the mouse, in a line with this text: what the debugger says of it. */
  async hover(line: string, name: string): Promise<Locator> {
    const shown = this.page.locator(".debug-hover-widget");
    await expect(async () => {
      await this.page.mouse.move(0, 0); // a pointer that does not move is not looked at
      const { x, y } = await this.workbench.place(line, name);
      await expect(shown).toBeHidden({ timeout: 5_000 }); // it keeps what it showed before
      await this.page.mouse.move(x - 1, y); // over no other word: what is said of one hides the next
      await this.page.mouse.move(x, y);
      await expect(shown).toBeVisible({ timeout: 5_000 });
      await expect(shown.locator(".value, .title").first()).toContainText(/\S/, { timeout: 5_000 });
    }).toPass();
    return shown;
  }

  // -- the views

  async view(): Promise<void> {
    if (!(await this.page.locator(".debug-variables").isVisible()))
      await this.workbench.press("Control+Shift+D");
    await expect(this.page.locator(".debug-variables")).toBeVisible();
  }

  variables(): Locator {
    return this.page.locator(".debug-variables .monaco-list-row");
  }

  /** The row of one variable, by its name, in a scope that is opened for it. */
  async variable(name: string, scope = "Values"): Promise<Locator> {
    const row = this.row(name);
    await expect(async () => {
      await this.expand(this.scope(scope));
      await expect(row).toBeVisible({ timeout: 2_000 });
    }).toPass();
    return row;
  }

  /** A row that is in sight, by its name. */
  row(name: string): Locator {
    const exact = name.replace(/[[\]]/g, "\\$&");
    return this.variables()
      .filter({ has: this.page.locator(".name", { hasText: new RegExp(`^${exact}( =|:)?\\s*$`) }) })
      .first();
  }

  scope(name: string): Locator {
    return this.variables()
      .filter({ hasText: new RegExp(`^${name}$`) })
      .first();
  }

  async expand(row: Locator): Promise<void> {
    const twistie = row.locator(".monaco-tl-twistie");
    if ((await row.getAttribute("aria-expanded", { timeout: 3_000 })) === "false")
      await twistie.click({ timeout: 3_000 });
    await expect(row).toHaveAttribute("aria-expanded", "true", { timeout: 3_000 });
  }

  /** Sets a variable in its row, by a double click. */
  async setValue(row: Locator, value: string): Promise<void> {
    const input = this.page.locator(".debug-variables .inputBoxContainer input");
    await expect(async () => {
      if (!(await input.isVisible())) await row.locator(".value").dblclick({ timeout: 3_000 });
      await expect(input).toBeFocused({ timeout: 3_000 });
    }).toPass();
    await input.fill(value);
    await input.press("Enter");
    await expect(input).toBeHidden();
  }

  /** From a variable's context menu: a data breakpoint. */
  async breakOnChange(row: Locator): Promise<void> {
    await this.workbench.choose(
      row,
      "Break on Value Change",
      this.page.locator(".debug-breakpoints .codicon-debug-breakpoint-data"),
    );
  }

  frames(): Locator {
    return this.page.locator(".debug-call-stack .monaco-list-row .stack-frame");
  }

  /** Adds a watch and gives its row. */
  async watch(expression: string): Promise<Locator> {
    const header = this.page.locator(".pane-header", { hasText: "Watch" });
    await header.hover();
    await header.locator('[aria-label="Add Expression"]').click();
    const input = this.page.locator(".debug-watch input");
    await expect(input).toBeFocused();
    await input.fill(expression);
    await input.press("Enter");
    return this.page.locator(".debug-watch .monaco-list-row").filter({ hasText: expression });
  }

  breakpoint(text: string | RegExp): Locator {
    return this.page.locator(".debug-breakpoints .monaco-list-row").filter({ hasText: text });
  }

  /** Turns an exception filter on or off, by its label. */
  async filter(label: string | RegExp, on: boolean): Promise<void> {
    const box = this.breakpoint(label).locator("input[type=checkbox], .monaco-checkbox").first();
    if (!this.before.has(label)) this.before.set(label, await box.isChecked());
    await expect(async () => {
      if ((await box.isChecked({ timeout: 5_000 })) !== on) await box.click({ timeout: 5_000 });
      await expect(box).toBeChecked({ checked: on, timeout: 5_000 });
    }).toPass();
  }

  /** The workbench keeps them beyond a session. */
  async resetFilters(): Promise<void> {
    if (this.before.size === 0) return;
    // Without a session and a launch.json there are no variables in the view.
    const shown = this.page.locator(".debug-breakpoints");
    await expect(async () => {
      if (!(await shown.isVisible())) await this.workbench.press("Control+Shift+D");
      await expect(shown).toBeVisible({ timeout: 5_000 });
    }).toPass();
    for (const [label, on] of this.before) await this.filter(label, on);
    this.before.clear();
  }

  /** NaNs and infinities do not stop it, as they do by default: once a session has begun. */
  async ignoreTrouble(): Promise<void> {
    await this.view();
    await this.filter("NaN, only where it is born", false);
    await this.filter("Infinity, only where it is born", false);
  }

  // -- the console, and terminals

  /** What the terminal in sight shows. */
  terminal(): Locator {
    return this.page.locator(".terminal-wrapper.active .xterm-rows");
  }

  /** Types a line into it. */
  async typeIntoTerminal(line: string): Promise<void> {
    const keys = this.page.locator(".terminal-wrapper.active .xterm-helper-textarea");
    await expect(async () => {
      await keys.focus({ timeout: 3_000 });
      await expect(keys).toBeFocused({ timeout: 2_000 });
    }).toPass();
    await this.workbench.type(line);
    await this.workbench.press("Enter");
  }

  async console(): Promise<Locator> {
    const lines = this.page.locator(".repl .monaco-list-row");
    if (!(await this.page.locator(".repl").isVisible()))
      await this.workbench.press("Control+Shift+Y");
    await expect(this.page.locator(".repl")).toBeVisible();
    return lines;
  }

  async expectConsole(text: string | RegExp): Promise<void> {
    const lines = await this.console();
    await expect(lines.filter({ hasText: text }).first()).toBeVisible();
  }

  async evaluate(expression: string): Promise<void> {
    await this.console();
    await this.page.locator(".repl-input-wrapper .monaco-editor .view-lines").click();
    await this.workbench.type(expression);
    await this.workbench.press("Enter");
  }
}
