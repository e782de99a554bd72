/** Labelled controls, and numbers as the Tensor view writes them. */

import { grouped, significant } from "../../shared/format";
import { h } from "../dom";

export interface Choice<T extends string> {
  value: T;
  label: string;
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
  more: Record<string, unknown> = {},
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
export function formatNumber(value: number | undefined): string {
  if (value === undefined) {
    return "";
  }
  if (!Number.isFinite(value)) {
    return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
  if (Number.isInteger(value) && Math.abs(value) < 1e15) {
    return grouped(value);
  }
  return significant(value, 6);
}
