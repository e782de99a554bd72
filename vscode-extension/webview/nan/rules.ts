/** What the rules of a NaN report mean, and what helps. */

import type { Link } from "../../shared/nan/messages";

const EXPLANATIONS: readonly [RegExp, string][] = [
  [
    /^log of 0/,
    "The logarithm of 0 is −infinity. Add a small number, such as 1e-6, to the operand of the logarithm. If the operand is a softmax, use log_softmax or softmax_cross_entropy instead of both: they do not round to 0.",
  ],
  [/^log of a negative/, "A logarithm has no value below 0: the operand must not be negative."],
  [
    /square root of a negative/,
    "A square root has no value below 0. A variance computed as a difference of squares may come out slightly negative.",
  ],
  [
    /^0 \/ 0/,
    "0 divided by 0 is undefined. Keep the divisor away from 0, or leave such elements out.",
  ],
  [
    /division by (0|a variance of 0)/,
    "A number divided by 0 is infinite. Keep the divisor away from 0 by an epsilon.",
  ],
  [/^1 \/ (0|sqrt)/, "The inverse of 0 is infinite. Keep the operand away from 0 by an epsilon."],
  [/inf \/ inf/, "A quotient of infinities is undefined: find where the infinities come from."],
  [/inf - inf/, "A difference of infinities is undefined: find where the infinities come from."],
  [
    /0 times infinity/,
    "0 times an infinity is undefined. Multiplying by a mask does not remove infinities; use where instead.",
  ],
  [
    /overflow of f16/,
    "The result is beyond 65,504, the largest f16. Compute it in f32 or bf16, or scale it down first.",
  ],
  [
    /overflow of/,
    "The result is beyond the largest number of its type. A wider type, or smaller operands, would hold it.",
  ],
  [
    /all elements of the row are -inf/,
    "A fully masked row has no maximum: leave one element unmasked.",
  ],
  [/label/, "Labels must be class numbers, and at least one must not be ignored."],
  [/power/, "Such a power has no real value."],
  [/epsilon is 0/, "Give the op an epsilon above 0."],
  [/defined/, "The operand is outside the range in which the function has a value."],
];

/** What a rule means, and what helps; empty where its own words are enough. */
export function explain(rule: string): string {
  return EXPLANATIONS.find(([pattern]) => pattern.test(rule))?.[1] ?? "";
}

/** What a link is, in a word or two. */
export function kindOf(link: Link): string {
  const labels = {
    origin: "born here",
    propagated: "passed on",
    given: "from outside",
    finite: "finite",
  };
  return labels[link.kind];
}
