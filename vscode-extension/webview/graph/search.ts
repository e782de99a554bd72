/** Nodes by words: which are found, and going from one to the next. */

import { matches } from "./model";
import type { Scene } from "./scene";
import type { State } from "./state";
import type { Toolbar } from "./toolbar";

export class Search {
  constructor(
    private readonly bar: Toolbar,
    private readonly scene: Scene,
    private readonly state: State,
    private readonly choose: (key: string | undefined) => void,
  ) {}

  focus(): void {
    this.bar.search.focus();
    this.bar.search.select();
  }

  clear(): void {
    this.bar.search.value = "";
    this.find();
  }

  /** Finds what is asked for in what is drawn now. */
  find(): void {
    const terms = this.bar.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found =
      terms.length === 0 ? [] : this.scene.picture.nodes.filter((n) => matches(n, terms));
    this.state.terms = terms;
    this.state.found = found.map((n) => n.key);
    const { buttons, count } = this.bar;
    buttons.next.disabled = buttons.previous.disabled = found.length === 0;
    count.textContent = terms.length === 0 ? "" : `${found.length} found`;
  }

  /** Finds, and goes to the first one, where there is one. */
  jump(): boolean {
    this.find();
    const [first] = this.state.found;
    if (first !== undefined) {
      this.choose(first);
    }
    return first !== undefined;
  }

  next(by: number): void {
    const { found } = this.state;
    if (found.length > 0) {
      const at = this.state.chosen === undefined ? -1 : found.indexOf(this.state.chosen);
      const last = found.length - 1;
      const to = at < 0 && by < 0 ? last : (at + by + found.length) % found.length;
      this.choose(found[to]);
      this.bar.count.textContent = `${to + 1} of ${found.length}`;
    }
  }
}
