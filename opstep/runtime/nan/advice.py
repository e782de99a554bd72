"""What helps against a broken rule, in a sentence or two."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opstep.runtime.nan.verdict import Element

# Functions whose slope is infinite where what is below their root is 0.
_ROOT = re.compile(r"(?<![a-z])(sqrt|norm|std|cdist|dist|pairwise_distance)\b")
_EDGE = re.compile(r"\b(acos|arccos|asin|arcsin|acosh|arccosh|atanh|arctanh)\b")  # at 1 and -1
# By what a rule says. Where a derivative broke it, those come first that are about derivatives.
_BACKWARD = (
    (
        r"0 times infinity",
        "0 times an infinity is undefined. Mend what made the infinity: it came first. A mask or a "
        "where behind that does not help, as its derivative multiplies by 0, too.",
    ),
)
_ADVICE = (
    (r".*epsilon is 0", "Give the op an epsilon above 0."),
    (
        r"log of 0: the labelled",
        "The score of the labelled class is -infinity: what masks scores must leave that one.",
    ),
    (
        r".*all (elements|scores)( of (the|a) row)? are -inf",
        "A row that is masked altogether has no maximum: leave one element unmasked.",
    ),
    (r".*label", "Labels must be class numbers, and at least one must not be ignored."),
    (
        r"0 / 0: (the (mean|variance) of|no more elements)",
        "There are too few elements to divide by their number: leave such groups out, or give them "
        "a value of their own. The variance of one element needs correction=0.",
    ),
    (
        r"log of 0",
        "The logarithm of 0 is -infinity. Add a small number, such as 1e-6, to the operand of the "
        "logarithm. If the operand is a softmax, use log_softmax or softmax_cross_entropy instead "
        "of both: they do not round to 0.",
    ),
    (r"log of a negative", "A logarithm has no value below 0: the operand must not be negative."),
    (
        r".*square root of a negative",
        "A square root has no value below 0. A variance computed as a difference of squares may "
        "come out slightly negative.",
    ),
    (
        r"0 / 0",
        "0 divided by 0 is undefined. Keep the divisor away from 0, or leave such elements out.",
    ),
    (
        r".*division by (0|a variance of 0)",
        "A number divided by 0 is infinite. Keep the divisor away from 0 by an epsilon.",
    ),
    (r"1 / (0|sqrt)", "The inverse of 0 is infinite. Keep the operand away from 0 by an epsilon."),
    (r".*inf / inf", "A quotient of infinities is undefined: find where the infinities come from."),
    (
        r".*inf - inf",
        "A difference of infinities is undefined: find where the infinities come from.",
    ),
    (
        r".*0 times infinity",
        "0 times an infinity is undefined. Multiplying by a mask does not remove infinities; use "
        "where instead.",
    ),
    (
        r"held: .*overflow of f16",
        "The result is beyond 65,504, the largest f16. Compute it in f32 or bf16, or scale it down "
        "first.",
    ),
    (
        r"held: .*overflow of",
        "The result is beyond the largest number of its type. A wider type, or smaller operands, "
        "would hold it.",
    ),
    (
        r".*overflow of",
        "The result is beyond the largest number of its type: operands must be smaller.",
    ),
    (
        r".*overflows on the way",
        "A number within the op is beyond the largest of its type: scale the operand down first.",
    ),
    (
        r"0 to a negative power",
        "0 to a negative power is infinite. Keep the operand away from 0 by an epsilon.",
    ),
    (r".*power", "Such a power has no real value."),
    (r".*defined", "The operand is outside the range in which the function has a value."),
)
_SLOPE = (
    "The slope of {0} at 0 is infinite: what stands below its root was 0. Add a small number, such "
    "as 1e-12, to that."
)
_AT_EDGE = (
    "The slope of {0} is infinite at the ends of the range in which it is defined: clamp its "
    "operand to a slightly smaller one, such as to 1 - 1e-6."
)


def advice(rule: str, backward: str = "", elements: Sequence[Element] = ()) -> str:
    """What a rule means and what helps, "" where its own words are enough. `backward`: the
    statement whose derivative broke it. `elements`: some that did; only where those are finite when
    they are computed in f64 may a wider type help.
    """
    if re.match(r"1 / (0|sqrt)|0 / 0|.*division by 0", rule):
        if root := _ROOT.search(backward):
            return _SLOPE.format(root[0])
        if edge := _EDGE.search(backward):
            return _AT_EDGE.format(edge[0])
    exact = [e.exact for e in elements if e.rule == rule]
    if any(e is not None and isfinite(e) for e in exact):
        rule = f"held: {rule}" if re.match(r".*overflow of (?!f64)", rule) else rule
    table = _BACKWARD + _ADVICE if backward else _ADVICE
    return next((text for pattern, text in table if re.match(pattern, rule)), "")
