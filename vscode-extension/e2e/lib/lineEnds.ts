/** What the extension writes behind the code of a line. */

import type { Workbench } from "./workbench";

/** The text behind the first line that has this one in it. */
export async function endOf(workbench: Workbench, line: string): Promise<string> {
  const row = workbench.editor().locator(".view-line", { hasText: line }).first();
  return row.evaluate((element) =>
    [...element.querySelectorAll("span")]
      .map((span) =>
        getComputedStyle(span, "::after").content.replace(/^"|"$|^none$|^normal$/g, ""),
      )
      .join("")
      .replaceAll("\u00a0", " "),
  );
}
