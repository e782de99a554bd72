"""Faults that several ops share, in words for people; an op's own stand with it."""

from __future__ import annotations

import numpy as np

from opstep.kernels.rules import relations
from opstep.kernels.rules.indices import no_class
from opstep.runtime.ir.faults import Faults, Rule, all_elements, infinite, opposed


def sums_and(relation, *rules: Rule) -> Faults:
    """Of what sums its first operand along `relation`."""
    return Faults(relation, *rules, Rule("inf - inf", lambda x, *others: opposed(x)))


OVERFLOW = Faults(
    relations.elementwise
)  # finite operands give an infinity only where they are large
LOGARITHM = Faults(
    relations.elementwise,
    Rule("log of a negative number", lambda x: x < 0),
    Rule("log of 0", lambda x: x == 0),
)
OUT_OF_DOMAIN = Faults(
    relations.elementwise, Rule("beyond -1 … 1, where it is defined", lambda x: np.abs(x) > 1)
)
WAVE = Faults(relations.elementwise, Rule("of an infinity", infinite))
REMAINDER = Faults(
    relations.elementwise,
    Rule("remainder of a division by 0", lambda a, b: (None, b == 0)),
    Rule("remainder of an infinity", lambda a, b: (infinite(a), None)),
)


def _meets(a, b, *_) -> bool:
    """Whether a zero of one is multiplied with an infinity of the other."""
    if a.size != b.size:
        return False
    a, b = a.reshape(-1), b.reshape(-1)
    return bool((((a == 0) & infinite(b)) | ((b == 0) & infinite(a))).any())


def _opposed_products(a, b, *_) -> bool:
    if a.size != b.size:
        return False
    with np.errstate(all="ignore"):
        return bool(opposed(a.reshape(-1) * b.reshape(-1)).any())


PRODUCTS = (
    Rule("0 times infinity", _meets),
    Rule("inf - inf among the products", _opposed_products),
)
MATRIX_PRODUCT = Faults(relations.row_by_column, *PRODUCTS)
LINEAR = Faults(relations.linear, *PRODUCTS)
CONVOLUTION = Faults(
    relations.convolved,
    *PRODUCTS,
    Rule(
        "0 of the padding times an infinite weight",
        lambda x, w, *_: (None, infinite(w) & (x.size < w.size)),
    ),
    value=relations.sum_of_products,
)


# --- rows that are exponentiated, normalised ------------------------------------------------------


def _all_below(x, *_) -> bool:
    return x.size > 0 and bool((x == -np.inf).all())


SOFTMAX = Faults(
    relations.along_axis,
    Rule("all elements of the row are -inf", _all_below),
    Rule("+inf in the row: inf - inf", lambda x, *_: x == np.inf),
)
SOFTMAX_GRAD = Faults(
    relations.along_axis,
    Rule("inf - inf", lambda y, gy: (None, opposed(gy))),
    Rule("0 times infinity", lambda y, gy: (None, infinite(gy) & (y == 0))),
)


def _no_class(x, label, *_, axis, ignore_index, **__) -> tuple:
    return None, no_class(x, label, axis, ignore_index)


def _all_ignored(x, label, *_, reduction, ignore_index, **__) -> bool:
    return reduction == "mean" and bool((label == ignore_index).all())


LABELLED = Faults(
    all_elements,
    Rule("a label that is none of the classes", _no_class),
    Rule("0 / 0: the mean of no labels, all are ignored", _all_ignored),
    Rule(
        "all scores of a row are -inf",
        lambda x, *_, axis, **__: bool((x == -np.inf).all(axis=axis).any()),
    ),
    Rule("+inf among the scores: inf - inf", lambda x, *_, **__: x == np.inf),
    Rule("log of 0: the labelled class has no probability", lambda x, *_, **__: x == -np.inf),
)


def _no_spread(x, *others, shape, epsilon) -> bool:
    return epsilon == 0 and bool((x == x.reshape(-1)[0]).all())


def _no_size(x, *others, shape, epsilon) -> bool:
    return epsilon == 0 and not bool(x.any())


LAYER_NORM = Faults(
    relations.trailing,
    Rule("0 / 0: the row has no spread, and epsilon is 0", _no_spread),
    Rule("an infinity in the row: inf - inf", lambda x, *_, **__: infinite(x)),
)
RMS_NORM = Faults(
    relations.trailing,
    Rule("0 / 0: the row is 0, and epsilon is 0", _no_size),
    Rule("an infinity in the row: inf / inf", lambda x, *_, **__: infinite(x)),
)


def _below(x, scale, bias, mean, var, *, epsilon) -> tuple:
    return None, None, None, None, var + epsilon < 0


def _nothing(x, scale, bias, mean, var, *, epsilon) -> tuple:
    return None, None, None, None, var + epsilon == 0


BATCH_NORM = Faults(
    relations.per_channel,
    Rule("square root of a negative variance", _below),
    Rule("division by a variance of 0", _nothing),
    Rule("inf - inf", lambda x, s, b, mean, *_, **__: infinite(x) & bool(infinite(mean).any())),
)
BATCH_NORM_TRAIN = Faults(
    relations.whole_channel,
    Rule(
        "0 / 0: the channel has no spread, and epsilon is 0",
        lambda x, *_, epsilon, **__: epsilon == 0 and bool((x == x.reshape(-1)[0]).all()),
    ),
    Rule("an infinity in the channel: inf - inf", lambda x, *_, **__: infinite(x)),
)


# --- indices --------------------------------------------------------------------------------------

# An index that does not exist reads NaN, so relations give no part of x for it.
MISSING = "an index that does not exist"
_MISSED = Rule(MISSING, lambda x, index, **_: (None, x is None))
GATHER = Faults(relations.picked, _MISSED, value=relations.itself)
GATHER_ELEMENTS = Faults(relations.picked_elements, _MISSED, value=relations.itself)
GATHER_ND = Faults(all_elements, Rule(MISSING, lambda x, index, **_: True))
INDEX = Faults(
    relations.indexed,
    Rule(MISSING, lambda x, *indices, **_: (None, *[x is None for _ in indices])),
    value=relations.itself,
)
