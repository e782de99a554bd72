/** The controls above the picture: expression, views, axes, scale, colours. */

import { grouped } from "../../shared/format";
import { ROLES, type Role, roleOf, sizeOf, withRole } from "../../shared/tensor/axes";
import type {
  Comparison,
  MapName,
  ScaleMode,
  ScaleOver,
  ViewState,
} from "../../shared/tensor/messages";
import { fill, h } from "../dom";
import { MAPS } from "./colours";
import { type Choice, chooser, formatNumber, numberBox } from "./dom";
import { type Model, nameOf } from "./model";

/** What the controls trigger in the page. */
interface Actions {
  subject(expression: string): void;
  pin(pinned: boolean): void;
  reveal(): void;
  /** Something of the view changed: `fetch` where other elements are wanted. */
  changed(what: "fetch" | "paint" | "layout"): void;
  save(what: "png" | "npy"): void;
  nanReport(): void;
  fit(): void;
}

// CSS pixels from which on all controls are seen.
const WIDE = 720;
const HIGH = 420;

const MODES: readonly Choice<ViewState["mode"]>[] = [
  { value: "picture", label: "Picture" },
  { value: "histogram", label: "Histogram" },
  { value: "table", label: "Table" },
];
const SCALES: readonly Choice<ScaleMode>[] = [
  { value: "minmax", label: "min to max" },
  { value: "percentile", label: "1 % to 99 %" },
  { value: "symmetric", label: "symmetric about 0" },
  { value: "log", label: "log of magnitude" },
  { value: "fixed", label: "fixed" },
];
const OVERS: readonly Choice<ScaleOver>[] = [
  { value: "shown", label: "the part shown" },
  { value: "tile", label: "each tile" },
  { value: "whole", label: "the whole tensor" },
];
const AGAINST: readonly Choice<Comparison["kind"]>[] = [
  { value: "none", label: "nothing" },
  { value: "step", label: "steps ago" },
  { value: "change", label: "changes ago" },
  { value: "expression", label: "expression" },
];

/** Of these a session on Python has no record. */
const COUNTED: readonly Comparison["kind"][] = ["step", "change"];

export class Controls {
  readonly head = h("header", { class: "bar" });
  readonly axes = h("div", { class: "axes", role: "group", "aria-label": "Axes" });
  readonly tools = h("div", { class: "bar tools" });

  constructor(
    private readonly model: Model,
    private readonly actions: Actions,
  ) {}

  /** Draws all controls anew. One that has the focus keeps it: it is found again by its name. */
  update(): void {
    const active = document.activeElement?.getAttribute("aria-label");
    this.updateHead();
    this.updateAxes();
    this.updateTools();
    if (active && document.activeElement === document.body) {
      document.querySelector<HTMLElement>(`[aria-label="${CSS.escape(active)}"]`)?.focus();
    }
  }

  private updateHead(): void {
    const { model, actions } = this;
    const box = h("input", {
      class: "expression",
      value: nameOf(model.subject),
      spellcheck: "false",
      "aria-label": "Expression",
      title: "A tensor, or any expression over tensors; Enter shows it",
    });
    const place = model.location;
    const where = place?.graph ? `${place.graph}:${place.line}` : "";
    fill(
      this.head,
      h(
        "form",
        {
          onsubmit: (event: Event) => {
            event.preventDefault();
            actions.subject(box.value.trim());
          },
        },
        box,
      ),
      h("code", { class: "type", "aria-label": "Type" }, model.type?.type ?? ""),
      where &&
        h(
          "button",
          { class: "link", onclick: () => actions.reveal(), title: "Go to the line" },
          where,
        ),
      h(
        "button",
        {
          class: "flat",
          "aria-pressed": String(place?.pinned ?? false),
          "aria-label": "Pin to this frame",
          title: place?.pinned
            ? `Pinned to ${place.graph}; press to follow the selected frame`
            : "Follows the selected frame; press to pin to this one",
          onclick: () => actions.pin(!place?.pinned),
        },
        place?.pinned ? "◉ pinned" : "◎ pin",
      ),
      h("span", { class: "space" }),
      this.tabs(),
      this.toggle(),
    );
  }

  /** A narrow panel leaves the room to the picture: what is not moved all the time can be hidden. */
  private toggle(): HTMLElement {
    const open = this.open;
    return h(
      "button",
      {
        class: "flat",
        "aria-expanded": String(open),
        "aria-label": "Options",
        title: open
          ? "Hide axes, scale, colours and comparison"
          : "Axes, scale, colours, comparison",
        onclick: () => {
          this.model.view.controls = !open;
          this.actions.changed("layout");
        },
      },
      open ? "▾ options" : "▸ options",
    );
  }

  private get open(): boolean {
    return this.model.view.controls ?? (window.innerWidth >= WIDE || window.innerHeight >= HIGH);
  }

  private tabs(): HTMLElement {
    const { model, actions } = this;
    const choose = (mode: ViewState["mode"]) => {
      model.view.mode = mode;
      actions.changed("layout");
    };
    const tabs = MODES.map((m, k) =>
      h(
        "button",
        {
          role: "tab",
          "aria-label": m.label,
          "aria-selected": String(m.value === model.view.mode),
          tabindex: m.value === model.view.mode ? 0 : -1,
          onclick: () => choose(m.value),
          onkeydown: (event: KeyboardEvent) => {
            const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
            const next = by && MODES[(k + by + MODES.length) % MODES.length];
            if (next) {
              choose(next.value);
              document.querySelector<HTMLElement>(`[role=tab][aria-label=${next.label}]`)?.focus();
            }
          },
        },
        m.label,
      ),
    );
    return h("div", { role: "tablist", "aria-label": "View" }, ...tabs);
  }

  private updateAxes(): void {
    const { model } = this;
    fill(this.axes, ...model.shape.map((size, axis) => this.axis(axis, size)));
    const { open } = this;
    this.axes.hidden = !open && !this.axes.querySelector(".slider");
    this.axes.classList.toggle("brief", !open);
    this.tools.hidden = !open;
  }

  private axis(axis: number, size: number): HTMLElement {
    const { model, actions } = this;
    const role = this.shownRole(axis);
    const roles = ROLES.filter((r) => r !== "colours" || size === 3).map((r) => ({
      value: r as string,
      label: r as string,
    }));
    const select = chooser(
      `axis ${axis} (${grouped(size)})`,
      [{ value: "", label: "at index" }, ...roles],
      role ?? "",
      (value) => {
        model.setAxes(withRole(model.axes, axis, (value || undefined) as Role | undefined));
        actions.changed("layout");
      },
    );
    select.querySelector("select")?.setAttribute("aria-label", `Axis ${axis} is`);
    const part = h("div", { class: "axis" }, select);
    if (role === undefined && size > 1) {
      part.append(
        this.slider(`Index of axis ${axis}`, model.axes.at[axis] ?? 0, size - 1, (k) => {
          const at = [...model.axes.at];
          at[axis] = k;
          model.setAxes({ ...model.axes, at });
          actions.changed("fetch");
        }),
      );
    } else if (role === "tiles" && size > 1024) {
      part.append(
        this.slider("First tile", model.view.firstTile, size - 1, (k) => {
          model.view.firstTile = k;
          actions.changed("fetch");
        }),
      );
    }
    return part;
  }

  /** A table has no tiles and no colours: there these axes stand at an index. */
  private shownRole(axis: number): Role | undefined {
    const role = roleOf(this.model.axes, axis);
    const flat = this.model.view.mode === "table" && (role === "tiles" || role === "colours");
    return flat ? undefined : role;
  }

  private slider(
    label: string,
    value: number,
    max: number,
    moved: (k: number) => void,
  ): HTMLElement {
    const range = h("input", { type: "range", min: 0, max, value, "aria-label": label });
    const box = h("input", {
      type: "number",
      min: 0,
      max,
      value,
      "aria-label": `${label}, number`,
    });
    range.addEventListener("input", () => {
      box.value = range.value;
      moved(range.valueAsNumber);
    });
    box.addEventListener("input", () => {
      const k = Math.round(box.valueAsNumber);
      if (k >= 0 && k <= max) {
        range.value = String(k);
        moved(k);
      }
    });
    return h("span", { class: "slider" }, range, box);
  }

  private updateTools(): void {
    const { model, actions } = this;
    const { view } = model;
    const parts: (HTMLElement | false)[] = [];
    if (view.mode === "picture") {
      parts.push(...this.scaling());
    } else if (view.mode === "histogram") {
      parts.push(...this.bins());
    }
    parts.push(...this.comparing());
    parts.push(h("span", { class: "space" }));
    if (view.mode === "picture") {
      parts.push(this.button("Fit", "Fit to window (0)", () => actions.fit()));
    }
    parts.push(
      this.button("NaN report", "Trace NaNs and infinities to their origin", actions.nanReport),
    );
    if (view.mode !== "table") {
      parts.push(this.button("PNG…", "Save the picture as PNG", () => actions.save("png")));
    }
    parts.push(
      this.button(".npy…", "Save the shown elements as a NumPy file", () => actions.save("npy")),
    );
    fill(this.tools, ...parts);
  }

  private button(text: string, title: string, onclick: () => void): HTMLElement {
    return h("button", { class: "flat", title, "aria-label": text, onclick }, text);
  }

  private scaling(): (HTMLElement | false)[] {
    const { model, actions } = this;
    const { view } = model;
    const colours = model.axes.colours >= 0;
    const set = (change: Partial<ViewState["scale"]>) => {
      view.scale = { ...view.scale, ...change };
      actions.changed("paint");
      this.update();
    };
    const fixed = view.scale.mode === "fixed";
    return [
      chooser("scale", SCALES, view.scale.mode, (mode) => set({ mode })),
      !fixed && chooser("over", OVERS, view.scale.over, (over) => set({ over })),
      fixed && numberBox("from", view.scale.low, (low) => set({ low }), { step: "any" }),
      fixed && numberBox("to", view.scale.high, (high) => set({ high }), { step: "any" }),
      !colours &&
        chooser(
          "colours",
          (Object.keys(MAPS) as MapName[]).map((value) => ({ value, label: MAPS[value] })),
          view.map,
          (map) => {
            view.map = map;
            actions.changed("paint");
          },
        ),
    ];
  }

  private bins(): HTMLElement[] {
    const { view } = this.model;
    const toggle = (label: string, key: "logCounts" | "exponents") =>
      h(
        "label",
        { class: "field" },
        h("input", {
          type: "checkbox",
          checked: view[key],
          "aria-label": label,
          onchange: () => {
            view[key] = !view[key];
            this.actions.changed("fetch");
            this.update();
          },
        }),
        h("span", {}, label),
      );
    const found = [toggle("log counts", "logCounts"), toggle("by exponent of 2", "exponents")];
    if (!view.exponents) {
      found.push(
        numberBox(
          "bins",
          view.bins,
          (bins) => {
            view.bins = Math.max(1, Math.min(4096, Math.round(bins)));
            this.actions.changed("fetch");
          },
          { min: 1, max: 4096 },
        ),
        chooser(
          "over",
          OVERS.filter((o) => o.value !== "tile"),
          view.scale.over,
          (over) => {
            view.scale.over = over;
            this.actions.changed("fetch");
          },
        ),
      );
    }
    return found;
  }

  private comparing(): (HTMLElement | false)[] {
    const { model, actions } = this;
    const { comparison } = model.view;
    const set = (change: Partial<Comparison>) => {
      model.view.comparison = { ...comparison, ...change };
      actions.changed("layout");
    };
    const against = AGAINST.filter(({ value }) => !(model.isPython && COUNTED.includes(value)));
    const counted = COUNTED.includes(comparison.kind) && !model.isPython;
    const by = h("input", {
      value: comparison.expression,
      class: "expression",
      placeholder: model.isPython ? "y, a + b" : 'y, x@-2, load("x.npy")',
      "aria-label": "Compared expression",
      spellcheck: "false",
      onchange: () => set({ expression: by.value }),
    });
    return [
      chooser("compare with", against, comparison.kind, (kind) => set({ kind })),
      counted &&
        numberBox("", comparison.count, (n) => set({ count: Math.max(1, Math.round(n)) }), {
          min: 1,
          "aria-label": "How many ago",
        }),
      comparison.kind === "expression" && by,
      model.earlier !== undefined &&
        model.view.mode === "picture" &&
        chooser(
          "difference",
          [
            { value: "absolute", label: "absolute" },
            { value: "relative", label: "relative" },
          ],
          model.view.difference,
          (difference) => {
            model.view.difference = difference;
            actions.changed("paint");
          },
        ),
    ];
  }
}

/** `64 of 1,000 tiles`, where not all are there. */
export function tilesNote(model: Model, count: number): string {
  const all = sizeOf(model.shape, model.axes.tiles);
  return count < all ? `${formatNumber(count)} of ${formatNumber(all)} tiles` : "";
}
