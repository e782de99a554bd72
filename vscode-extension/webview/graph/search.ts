/** Nodes by words: which are found, drawn or not, and going from one to the next. */

import { grouped } from "../../shared/format";
import { matches, type Picture, type PictureNode } from "./model";

/** The parts of the page that it needs. */
interface Bar {
  search: { value: string; focus(): void; select(): void };
  count: { textContent: string | null };
  buttons: Record<"next" | "previous", { disabled: boolean }>;
}

interface Drawn {
  readonly picture: Picture;
}

interface Found {
  terms: string[];
  found: ReadonlySet<string>;
  chosen: string | undefined;
}

export class Search {
  private stepping = false; // from one to the next: the count says which one it is

  constructor(
    private readonly bar: Bar,
    private readonly scene: Drawn,
    private readonly state: Found,
    private readonly choose: (key: string | undefined) => void,
    /** Nodes, also in calls that are closed. */
    private readonly whole: () => readonly PictureNode[] = () => scene.picture.all,
  ) {}

  focus(): void {
    this.bar.search.focus();
    this.bar.search.select();
  }

  clear(): void {
    this.bar.search.value = "";
    this.stepping = false;
    this.find();
  }

  /** Finds what is asked for in the whole graph: of a large one most is not drawn. */
  find(): void {
    const terms = this.bar.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = terms.length === 0 ? [] : this.whole().filter((n) => matches(n, terms));
    this.state.terms = terms;
    this.state.found = new Set(found.map((n) => n.key));
    const { buttons } = this.bar;
    buttons.next.disabled = buttons.previous.disabled = found.length === 0;
    this.say();
  }

  /** Finds, and goes to the first one that is drawn, or to the first, where there is one. */
  jump(): boolean {
    this.stepping = false;
    this.find();
    const found = [...this.state.found];
    const drawn = this.drawn();
    const first = found.find((key) => drawn.has(key)) ?? found[0];
    if (first !== undefined) {
      this.choose(first);
    }
    return first !== undefined;
  }

  next(by: number): void {
    const found = [...this.state.found];
    if (found.length > 0) {
      const at = this.state.chosen === undefined ? -1 : found.indexOf(this.state.chosen);
      const last = found.length - 1;
      const to = at < 0 && by < 0 ? last : (at + by + found.length) % found.length;
      this.stepping = true;
      this.choose(found[to]);
      this.say();
    }
  }

  private say(): void {
    const { terms, chosen } = this.state;
    const found = [...this.state.found];
    const at = this.stepping && chosen !== undefined ? found.indexOf(chosen) : -1;
    const drawn = this.drawn();
    const absent = found.filter((key) => !drawn.has(key)).length;
    const left = absent > 0 ? `, ${grouped(absent)} not drawn` : "";
    const all = grouped(found.length);
    this.bar.count.textContent =
      terms.length === 0 ? "" : at < 0 ? `${all} found${left}` : `${grouped(at + 1)} of ${all}`;
  }

  private drawn(): Set<string> {
    return new Set(this.scene.picture.nodes.map((n) => n.key));
  }
}
