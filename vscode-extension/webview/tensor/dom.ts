/** Elements of the page, made in one expression each. */

type Child = Node | string | undefined | false;
type Properties = Record<string, unknown>;

/** `h("button", { class: "flat", onclick: go, "aria-label": "Go" }, "Go")` */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Properties = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on") && typeof value === "function") {
      made.addEventListener(name.slice(2), value as EventListener);
    } else if (value === true) {
      made.setAttribute(name, "");
    } else if (value !== false && value !== undefined) {
      made.setAttribute(name, String(value));
    }
  }
  fill(made, ...children);
  return made;
}

/** Replaces what is in an element. */
export function fill(parent: Element, ...children: Child[]): void {
  parent.replaceChildren(
    ...children.filter((c): c is Node | string => c !== undefined && c !== false),
  );
}

export interface Choice<T extends string> {
  value: T;
  label: string;
  title?: string;
}

/** A list to choose from, with its label. */
export function chooser<T extends string>(
  label: string,
  choices: readonly Choice<T>[],
  value: T,
  chosen: (value: T) => void,
): HTMLLabelElement {
  const select = h(
    "select",
    { onchange: () => chosen(select.value as T) },
    ...choices.map((c) => h("option", { value: c.value, selected: c.value === value }, c.label)),
  );
  return h("label", { class: "field" }, h("span", {}, label), select);
}

/** A box for a number, with its label. */
export function numberBox(
  label: string,
  value: number,
  changed: (value: number) => void,
  more: Properties = {},
): HTMLLabelElement {
  const input = h("input", {
    type: "number",
    value,
    ...more,
    onchange: () => {
      if (input.value !== "" && Number.isFinite(input.valueAsNumber)) {
        changed(input.valueAsNumber);
      }
    },
  });
  return h("label", { class: "field" }, h("span", {}, label), input);
}

/** Numbers for people: six digits, groups of thousands in integers. */
export function shown(value: number | undefined): string {
  if (value === undefined) {
    return "";
  }
  if (!Number.isFinite(value)) {
    return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
  if (Number.isInteger(value) && Math.abs(value) < 1e15) {
    return value.toLocaleString("en-US");
  }
  return String(Number(value.toPrecision(6)));
}

/** A colour of the theme. */
export function themed(name: string, fallback: string): string {
  const found = getComputedStyle(document.body).getPropertyValue(`--vscode-${name}`).trim();
  return found || fallback;
}
