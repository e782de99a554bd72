/** Previous queries, the newest first: to choose from, and to recall with the arrow keys. */

import type { Mode } from "../../shared/query/messages";

const MOST = 100;
const LISTED = 30;

interface Entry {
  mode: Mode;
  text: string;
}

interface Choice {
  label: string;
  detail: string | undefined;
  run: () => void;
}

export class QueryHistory {
  private all: Entry[] = [];
  private position = -1;

  set entries(entries: Entry[]) {
    this.all = entries;
  }

  add(entry: Entry): void {
    this.position = -1;
    this.all = [entry, ...this.all.filter((other) => other.text !== entry.text)].slice(0, MOST);
  }

  items(choose: (entry: Entry) => void): Choice[] {
    return this.all.slice(0, LISTED).map((entry) => {
      const [first = "", ...rest] = entry.text.split("\n");
      const detail = rest.length ? rest.join(" ").slice(0, 120) : undefined;
      return { label: first.slice(0, 100), detail, run: () => choose(entry) };
    });
  }

  /** The text so many before the one that was recalled last; undefined, and none is, where it ends. */
  recall(mode: Mode, step: number): string | undefined {
    const next = this.position + step;
    const entry = this.all.filter((other) => other.mode === mode)[next];
    if (entry) {
      this.position = next;
    }
    return entry?.text;
  }
}
