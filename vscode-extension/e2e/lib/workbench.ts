/** The workbench as a person uses it: keys, the palette, the editor, what is said. */

import { join } from "node:path";

import { expect, type FrameLocator, type Locator, type Page } from "@playwright/test";

import { Debugging } from "./debugging";
import type { Folder } from "./folder";
import { CLOSE_TERMINALS, HIDE, RESET } from "./server";

export class Workbench {
  readonly debug: Debugging;
  /** Everything that the page and the extension wrote to the console. */
  readonly console: string[] = [];

  constructor(
    readonly page: Page,
    readonly folder: Folder,
    private readonly url: string,
  ) {
    this.debug = new Debugging(this);
    page.on("console", (message) => this.console.push(message.text()));
  }

  /** Opens the folder. */
  async open(folder = this.folder.path): Promise<void> {
    await this.page.goto(`${this.url}/?folder=${encodeURIComponent(folder)}`);
    await this.page.locator(".monaco-workbench .statusbar").waitFor();
    await this.page.locator(".part.sidebar, .part.activitybar").first().waitFor();
    // The extension host answers where the remote indicator says which host it is.
    await this.page.locator('.statusbar-item[id="status.host"]').waitFor();
  }

  /** What is written from now on is seen: a window watches its folder some time after it is there. */
  async expectWatched(): Promise<void> {
    const row = this.file("watched");
    await expect(async () => {
      await this.folder.write("watched", "");
      try {
        await expect(row).toBeVisible({ timeout: 2_000 });
      } finally {
        await this.folder.delete("watched");
      }
      await expect(row).toHaveCount(0, { timeout: 2_000 });
    }).toPass();
  }

  /** Opens a file in a window without a folder. */
  async openAlone(file: string): Promise<void> {
    const address = new URL(this.url).host;
    const payload = JSON.stringify([["openFile", `vscode-remote://${address}${file}`]]);
    await this.page.goto(`${this.url}/?ew=true&payload=${encodeURIComponent(payload)}`);
    await this.editor().locator(".view-line").first().waitFor();
  }

  /** Makes window and folder as they were when they had been opened. */
  async reset(): Promise<void> {
    await this.debug.resetFilters();
    const left = this.page.locator(
      ".tabs-container .tab, .debug-toolbar, .part.panel, .terminal-tabs-entry",
    );
    const sidebar = this.page.locator(".part.sidebar");
    // Keys of a page in the page are not the workbench's, and it takes the focus back now and then.
    const press = async (key: string) => {
      await this.page.evaluate(() => (document.activeElement as HTMLElement | null)?.blur());
      await this.press(key);
    };
    await expect(async () => {
      await press(HIDE);
      await expect(sidebar).toBeHidden({ timeout: 5_000 });
      await press(RESET);
      await expect(sidebar).toBeVisible({ timeout: 5_000 });
      // Pressed again before it is through, it would go on in the midst of the next test.
      await expect(this.page.locator(".explorer-folders-view")).toBeVisible();
      await press(CLOSE_TERMINALS);
      await expect(left.filter({ visible: true })).toHaveCount(0, { timeout: 5_000 });
    }).toPass({ timeout: 150_000 });
    await this.page.mouse.move(0, 0);
    await this.folder.restore();
    await this.debug.expectForgotten();
  }

  /** A window has what size a test wants: a workbench that is busy may overlook that it changes. */
  async resize(wanted: { width: number; height: number }): Promise<void> {
    const laidOut = this.page.locator(".monaco-workbench > .monaco-grid-view");
    await expect(async () => {
      const box = await laidOut.boundingBox();
      if (box?.width === wanted.width && box.height === wanted.height) return;
      await this.page.setViewportSize({ ...wanted, height: wanted.height - 1 });
      await this.page.setViewportSize(wanted);
      await expect.poll(() => laidOut.boundingBox(), { timeout: 5_000 }).toMatchObject(wanted);
    }).toPass();
  }

  // -- keys and commands

  async press(...keys: string[]): Promise<void> {
    for (const key of keys) await this.page.keyboard.press(key);
  }

  /** Runs a command by its title in the palette, and nothing that is only alike. */
  async command(title: string): Promise<void> {
    await this.pick(() => this.press("F1"), `>${title}`, title);
  }

  /** Types into a quick pick that `open` shows, and takes the row with this label. */
  async pick(open: () => Promise<void>, text: string, label: string): Promise<void> {
    const input = this.page.locator(".quick-input-widget input.input");
    const row = this.quickRows()
      .filter({ has: this.page.locator(".label-name", { hasText: exactly(label) }) })
      .first();
    await expect(async () => {
      // Opened twice, it forgets what was typed in between.
      if (!(await row.isVisible())) {
        await open();
        await expect(input).toBeFocused({ timeout: 5_000 });
        await input.fill(text);
      }
      await row.click({ timeout: 10_000 });
    }).toPass();
    // What the row opens may have an input, too: it is not this one.
    await expect(row).toBeHidden();
  }

  /**
   * Answers an input box: one that is already there, or that a click on `opener` opens. A lens that is
   * renewed at the moment it is clicked does nothing.
   */
  async answer(text: string, opener?: Locator): Promise<void> {
    const input = this.page.locator(".quick-input-widget input.input");
    await expect(async () => {
      if (opener && (await input.isHidden())) await opener.click({ timeout: 5_000 });
      await expect(input).toBeFocused({ timeout: opener ? 10_000 : undefined });
    }).toPass();
    await input.fill(text);
    await this.press("Enter");
    await expect(input).toBeHidden();
  }

  /**
   * Answers a file dialog. It proposes a name as soon as it has read the folder, whatever was typed
   * before, and while it reads one it is deaf to Enter.
   */
  async chooseFile(proposed: RegExp, path: string): Promise<void> {
    const input = this.page.locator(".quick-input-widget input.input");
    await expect(input).toHaveValue(proposed);
    await expect(async () => {
      if (await input.isHidden()) return;
      await input.fill(path);
      await expect(this.page.locator(".quick-input-progress.active")).toHaveCount(0);
      await expect(input).toHaveValue(path, { timeout: 1_000 });
      await this.press("Enter");
      await expect(input).toBeHidden({ timeout: 3_000 });
    }).toPass();
  }

  quickRows(): Locator {
    return this.page.locator(".quick-input-list .monaco-list-row");
  }

  // -- the editor

  /** Opens a file of the folder's top from the explorer, and waits until it can be typed into. */
  async openFile(name: string, ready = true): Promise<void> {
    const title = name.split("/").at(-1) ?? name;
    await this.openOther(title);
    await expect(this.editor().locator(".view-line").first()).toBeVisible();
    await this.focusEditor();
    if (name.endsWith(".opg") && ready) {
      await this.expectReady();
      // The language server has answered: completion, rename and the rest are there.
      await expect(this.editor().locator(".codelens-decoration a").first()).toBeVisible();
    }
  }

  /** Opens a file that an editor of its own shows. */
  async openOther(name: string): Promise<void> {
    const row = this.file(name);
    const tab = this.page.locator(`.tab.active[data-resource-name="${name}"]`);
    const explorer = this.page.locator(".explorer-folders-view");
    await expect(async () => {
      if (!(await explorer.isVisible())) await this.press("Control+Shift+e");
      if (!(await tab.isVisible())) await row.dblclick({ timeout: 20_000 });
      await expect(tab).toBeVisible({ timeout: 5_000 });
    }).toPass();
  }

  /** The name of a file in the explorer. */
  private file(name: string): Locator {
    return this.page
      .locator(".explorer-folders-view .monaco-list-row .monaco-icon-label-container .label-name")
      .filter({ hasText: exactly(name) });
  }

  /** The extension runs: it says on which device and in which mode. */
  async expectReady(): Promise<void> {
    await expect(this.page.locator('.statusbar-item[id$="opstep.status"]')).toBeVisible();
  }

  editor(): Locator {
    return this.page
      .locator(".editor-group-container.active .editor-instance .monaco-editor")
      .first();
  }

  /** Clicks into its first line: by the place, for an editor is not scrolled as a page is. */
  async focusEditor(): Promise<void> {
    const editor = this.editor();
    await expect(async () => {
      const box = await editor.boundingBox({ timeout: 1_000 });
      if (box === null) throw new Error("no editor is shown");
      await this.page.mouse.click(box.x + Math.min(470, box.width - 40), box.y + 10);
      await expect(editor).toHaveClass(/\bfocused\b/, { timeout: 2_000 });
    }).toPass();
  }

  /** Puts the cursor behind `column - 1` characters of a line. */
  async goTo(line: number, column = 1): Promise<void> {
    const input = this.page.locator(".quick-input-widget input.input");
    const status = this.page.locator('.statusbar-item[id="status.editor.selection"]');
    await expect(async () => {
      await this.press("Control+g");
      await expect(input).toBeFocused({ timeout: 5_000 });
      await input.fill(`:${line}:${column}`);
      await this.press("Enter");
      await expect(input).toBeHidden({ timeout: 5_000 });
      await expect(status).toContainText(`Ln ${line}, Col ${column}`, { timeout: 5_000 });
    }).toPass();
  }

  /** The cursor at the first place of `text` in the file as it is on the disk. */
  async goToText(name: string, text: string): Promise<void> {
    const before = (await this.folder.read(name)).split(text);
    if (before.length < 2) throw new Error(`${name} has no ${text}`);
    const lines = before[0].split("\n");
    await this.goTo(lines.length, lines[lines.length - 1].length + 1);
  }

  /** Types as a person does, after the suggestions of what was there are gone. */
  async type(text: string): Promise<void> {
    await this.page.keyboard.type(text, { delay: 10 });
  }

  async save(): Promise<void> {
    await this.press("Control+s");
    await expect(this.page.locator(".tab.active.dirty")).toHaveCount(0);
  }

  /** What stands in the lines that are in sight. */
  async text(): Promise<string> {
    const lines = await this.editor()
      .locator(".view-line")
      .evaluateAll((found) =>
        found
          .map((line) => ({
            top: Number.parseFloat((line as HTMLElement).style.top),
            text: line.textContent ?? "",
          }))
          .sort((a, b) => a.top - b.top)
          .map((line) => line.text.replace(/\u00a0/g, " ").replace(/[\u200b\u200c]/g, "")),
      );
    return lines.join("\n");
  }

  /** The number of the line at the height of a decoration of the active editor. */
  async lineOf(selector: string): Promise<number | null> {
    return this.editor().evaluate((editor, wanted) => {
      const mark = editor.querySelector(wanted);
      if (!mark) return null;
      const top = mark.getBoundingClientRect().top;
      const numbers = [...editor.querySelectorAll(".line-numbers")];
      const found = numbers.find((n) => Math.abs(n.getBoundingClientRect().top - top) < 3);
      return found?.textContent ? Number(found.textContent) : null;
    }, selector);
  }

  /** The middle of a word in a line of the active editor that has this text. */
  async place(line: string, word: string): Promise<{ x: number; y: number }> {
    const row = this.editor().locator(".view-line", { hasText: line }).first();
    return row.evaluate((element, wanted) => {
      const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
      for (let text = texts.nextNode(); text; text = texts.nextNode()) {
        const at = (text.textContent ?? "").search(new RegExp(`\\b${wanted}\\b`));
        if (at < 0) continue;
        const range = document.createRange();
        range.setStart(text, at);
        range.setEnd(text, at + wanted.length);
        const box = range.getBoundingClientRect();
        return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
      }
      throw new Error(`no ${wanted} stands there`);
    }, word);
  }

  /** What completion offers at the cursor; it is asked for where typing did not. */
  async expectSuggested(text: string): Promise<void> {
    const rows = this.page.locator(".suggest-widget.visible .monaco-list-row");
    await expect(async () => {
      if ((await rows.count()) === 0) await this.press("Control+Space");
      await expect(rows.first()).toContainText(text, { timeout: 3_000 });
    }).toPass();
  }

  /** Takes a quick fix at the cursor: the lamp comes when the server has told what it would do. */
  async fix(label: string): Promise<void> {
    const row = this.page.locator(".action-widget .monaco-list-row.action", { hasText: label });
    await expect(async () => {
      if (!(await row.first().isVisible())) await this.press("Control+.");
      await row.first().click({ timeout: 3_000 });
      await expect(row).toHaveCount(0, { timeout: 3_000 });
    }).toPass();
  }

  /**
   * Shows what is told of the cursor's place until it has a text. A server that has just started may
   * tell nothing yet; and what was told last stays in the page, out of sight.
   */
  async expectHover(text: string): Promise<void> {
    const shown = this.page
      .locator(".monaco-resizable-hover .monaco-hover-content, .monaco-hover .monaco-hover-content")
      .filter({ hasText: text, visible: true });
    await expect(async () => {
      await this.press("Control+k", "Control+i");
      await expect(shown).not.toHaveCount(0, { timeout: 5_000 });
    }).toPass();
  }

  // -- around it

  panel(name: string): Locator {
    return this.page.locator(`.part.panel .composite.title:has-text("${name}")`);
  }

  notification(text: string | RegExp): Locator {
    return this.page.locator(".notification-list-item").filter({ hasText: text });
  }

  status(text: string | RegExp): Locator {
    return this.page.locator(".statusbar-item").filter({ hasText: text });
  }

  /** No task runs any more: only then does the next one take over its terminal. */
  async expectTasksEnded(): Promise<void> {
    await expect(this.page.locator('.statusbar-item[id="status.runningTasks"]')).toHaveCount(0);
  }

  /** A dialog in the middle of the window. */
  dialog(text: string | RegExp): Locator {
    return this.page.locator(".monaco-dialog-box").filter({ hasText: text });
  }

  /** A tab of the editors, by its title. */
  tab(title: string | RegExp): Locator {
    return this.page.locator(".tabs-container .tab").filter({ hasText: title });
  }

  /** The contents of the webview in sight; what opens it is done again while there is none. */
  async webview(inside: string, open?: () => Promise<void>): Promise<FrameLocator> {
    const found = async () => {
      for (const webview of await this.page.locator("iframe.webview").all()) {
        const frame = webview.contentFrame().frameLocator("#active-frame");
        if ((await frame.locator(inside).count()) > 0) return frame;
      }
      return undefined;
    };
    let frame: FrameLocator | undefined;
    await expect(async () => {
      if (open) await open();
      await expect(async () => {
        frame = await found();
        expect(frame, `no webview has ${inside}`).toBeTruthy();
      }).toPass(open && { timeout: 10_000 });
    }).toPass();
    return frame as FrameLocator;
  }

  /**
   * Asks a workspace in the query that is open. The text is put in by the page itself: while the panel
   * opens, the workbench moves the focus, and keys may still go to the code beside it.
   */
  async ask(text: string): Promise<FrameLocator> {
    const query = await this.webview(".cm-content");
    const box = query.locator(".cm-content");
    await expect(async () => {
      await box.evaluate((element, wanted) => {
        element.focus();
        document.getSelection()?.selectAllChildren(element);
        document.execCommand("insertText", false, wanted);
      }, text);
      await expect(box).toHaveText(text, { timeout: 1_000 });
    }).toPass();
    await query.getByRole("button", { name: "Run", exact: true }).click();
    return query;
  }

  /**
   * Takes an entry of a row's context menu, until `effect` is seen: a menu that has just opened
   * ignores the mouse at first, and one closes by itself when a view beside it takes the focus.
   */
  async choose(row: Locator, label: string | RegExp, effect: Locator): Promise<void> {
    const entry = this.page.locator(".monaco-menu .action-item").filter({ hasText: label }).first();
    await expect(async () => {
      if (await effect.isVisible()) return;
      if (!(await entry.isVisible())) await row.click({ button: "right", timeout: 3_000 });
      await entry.click({ timeout: 3_000 });
      await expect(effect).toBeVisible({ timeout: 15_000 });
    }).toPass();
  }

  /** Shows a view container by its command, where it is not already. */
  async show(title: string): Promise<void> {
    await this.command(title);
  }

  async screenshot(path: string): Promise<void> {
    await this.page.screenshot({ path: join(path) });
  }
}

export function exactly(text: string): RegExp {
  // A label may have an icon in front.
  return new RegExp(`^\\s*${text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}\\s*$`);
}
