/** Elements of a tensor as text to be edited. */

/** The elements as a person types them: of a float no more digits than tell it from its neighbours. */
export function asTyped(elements: string, type: string): string {
  const digits = { f32: 9, f16: 5, bf16: 4 }[type.split("[")[0] ?? ""];
  const text = elements.replaceAll("True", "true").replaceAll("False", "false");
  return digits === undefined
    ? text
    : text.replace(/\d+\.?\d*(?:e[-+]?\d+)?/g, (number) => shortest(Number(number), digits));
}

function shortest(number: number, most: number): string {
  for (let digits = 1; digits < most; digits++) {
    const text = Number(number.toPrecision(digits));
    if (Math.fround(text) === Math.fround(number)) {
      return String(text);
    }
  }
  return String(Number(number.toPrecision(most)));
}
