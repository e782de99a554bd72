/** Elements of the page, created in one expression each. */

type Child = Node | string | undefined | false;
type Properties = Record<string, unknown>;

/** `h("button", { class: "flat", onclick: go, text: "Go" })`: `on…` are listeners, `text` is its text. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Properties = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on") && typeof value === "function") {
      created.addEventListener(name.slice(2), value as EventListener);
    } else if (name === "text") {
      created.append(String(value));
    } else if (value === true) {
      created.setAttribute(name, "");
    } else if (value !== false && value !== undefined) {
      created.setAttribute(name, String(value));
    }
  }
  created.append(...children.filter(isNode));
  return created;
}

/** Replaces what is in an element. */
export function fill(parent: Element, ...children: Child[]): void {
  parent.replaceChildren(...children.filter(isNode));
}

function isNode(child: Child): child is Node | string {
  return child !== undefined && child !== false;
}

/** A colour of the theme. */
export function themeColour(name: string, fallback: string): string {
  const found = getComputedStyle(document.body).getPropertyValue(`--vscode-${name}`).trim();
  return found || fallback;
}
