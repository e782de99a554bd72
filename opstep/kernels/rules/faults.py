"""Faults that several ops share, for `Op.faults`: from which elements of its operands an element of
a result comes, and the rules that may be broken, in words for people. An op's own stand with it.

Parts keep the rank of their operand, so an op's oracle can be asked about a part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opstep.kernels.rules.indices import no_class
from opstep.runtime.ir.faults import Faults, Regions, Rule, Site, all_elements, infinite, opposed

Parts = Sequence[Any]  # of operands, as `Op.faults` has them computed: floats wide, None for none


def elementwise(site: Site) -> Regions:
    """The elements that broadcasting brings together."""
    return [None if a is None else aligned(site.index, a.shape) for a in site.operands]


def aligned(index: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    """The element of an operand of that shape that meets `index` of the result."""
    tail = index[len(index) - len(shape) :] if shape else ()
    return tuple(_one(p if n > 1 else 0) for p, n in zip(tail, shape, strict=True))


def over_axes(site: Site) -> Regions:
    """The elements that are folded to one: all along `axes`."""
    x = site.operands[0]
    axes = site.attrs["axes"]
    folded = set(range(x.ndim)) if axes is None else {a % x.ndim for a in axes}
    kept = iter(site.index)
    part = []
    for axis in range(x.ndim):
        if axis in folded:
            part.append(slice(None))
            if site.attrs["keepdims"]:
                next(kept)
        else:
            part.append(_one(next(kept)))
    return [tuple(part)]


def along_axis(site: Site) -> Regions:
    """Each operand's row along `axis` through the element."""
    found = []
    for a in site.operands:
        axis = site.attrs["axis"] % a.ndim
        row = [slice(None) if k == axis else _one(p) for k, p in enumerate(site.index)]
        found.append(tuple(row))
    return found


def trailing(site: Site) -> Regions:
    """Norms over the last axes: the first operand's block; all of scales and the like. Operands of
    the first one's shape are taken block by block as well.
    """
    first = site.operands[0]
    n = len(site.attrs["shape"])
    if len(site.index) != first.ndim:
        return all_elements(site)
    block = (*map(_one, site.index[: first.ndim - n]), *[slice(None)] * n)
    return [
        None if a is None else block if a.shape == first.shape else (slice(None),) * a.ndim
        for a in site.operands
    ]


def per_channel(site: Site) -> Regions:
    """A batch norm with given moments: the element, and what its channel has."""
    channel = _one(site.index[1])
    return [tuple(map(_one, site.index)) if a.ndim > 1 else (channel,) for a in site.operands]


def whole_channel(site: Site) -> Regions:
    """A batch norm that takes the moments of its operand: all of the channel."""
    channel = _one(site.index[min(1, len(site.index) - 1)])
    return [
        (slice(None), channel, *[slice(None)] * (a.ndim - 2)) if a.ndim > 1 else (channel,)
        for a in site.operands
    ]


def row_by_column(site: Site) -> Regions:
    """A matrix product."""
    a, b = site.operands
    index = list(site.index)
    column = _one(index.pop()) if b.ndim > 1 else None
    row = _one(index.pop()) if a.ndim > 1 else None
    left = (row, slice(None)) if row else (slice(None),)
    right = (slice(None), column) if column else (slice(None),)
    if site.attrs["transpose_a"]:
        left = left[::-1]
    if site.attrs["transpose_b"]:
        right = right[::-1]
    return [(*aligned(index, a.shape[:-2]), *left), (*aligned(index, b.shape[:-2]), *right)]


def linear(site: Site) -> Regions:
    """A row of the operand, a row of the weights (as they are multiplied, a column), and an element
    of the bias.
    """
    *before, column = site.index
    bias = None if len(site.operands) < 3 or site.operands[2] is None else (_one(column),)
    weights = (_one(column), slice(None))
    weights = weights[::-1] if site.attrs["transpose_w"] else weights
    return [(*map(_one, before), slice(None)), weights, bias]


def by_reduction(site: Site) -> Regions:
    """A loss: all of it, or the elements that meet where nothing is reduced."""
    return elementwise(site) if site.attrs["reduction"] == "none" else all_elements(site)


def grouped(site: Site) -> Regions:
    """A group norm: the sample's group of channels; the channel's scale and bias."""
    x = site.operands[0]
    width = x.shape[1] // site.attrs["groups"]
    first = site.index[1] // width * width
    group = (_one(site.index[0]), slice(first, first + width), *[slice(None)] * (x.ndim - 2))
    return [group, *[None if p is None else (_one(site.index[1]),) for p in site.operands[1:]]]


def of_sample(oracle: Callable[..., Any], site: Site, parts: Parts) -> Any:
    """An element by the oracle of its whole sample."""
    dtype = parts[0].dtype
    x, *params = site.operands
    sample = x[site.index[0] : site.index[0] + 1].astype(dtype)
    params = [None if p is None else p.astype(dtype) for p in params]
    return oracle(sample, *params, **site.attrs)[0, *site.index[1:]]


# --- indices --------------------------------------------------------------------------------------


def picked(site: Site) -> Regions:
    """The index, and what it picks of the first operand: None where there is no such element."""
    return _selected(site, [site.attrs.get("axis", 0)])


def picked_elements(site: Site) -> Regions:
    """The same for indices of the result's shape."""
    x, index = site.operands
    axis = site.attrs["axis"] % x.ndim
    at = _existing(int(index[site.index]), x.shape[axis])
    there = [_one(p) for p in site.index]
    if at is not None:
        there[axis] = _one(at)
    return [None if at is None else tuple(there), tuple(map(_one, site.index))]


def indexed(site: Site) -> Regions:
    """The same for several indices, which broadcast."""
    return _selected(site, site.attrs["axes"] or range(len(site.operands) - 1))


def _selected(site: Site, axes: Sequence[int]) -> Regions:
    """Of indices for these axes: their own stand at the first one, if these are neighbours."""
    x, *indices = site.operands
    axes = [a % x.ndim for a in axes]
    rank = max(i.ndim for i in indices)
    first = min(axes) if max(axes) - min(axes) == len(axes) - 1 else 0
    where = site.index[first : first + rank]
    rest = iter((*site.index[:first], *site.index[first + rank :]))
    parts = [aligned(where, i.shape) for i in indices]
    at = {
        a: _existing(int(i[p].reshape(())), x.shape[a])
        for a, i, p in zip(axes, indices, parts, strict=True)
    }
    spots = [at[a] if a in at else next(rest) for a in range(x.ndim)]
    element = None if None in spots else tuple(map(_one, spots))  # pyright: ignore[reportArgumentType]
    return [element, *parts]


def itself(site: Site, parts: Parts) -> Any:
    """The element that was picked; NaN where there is none."""
    return float("nan") if parts[0] is None else parts[0].reshape(-1)[0]


def _existing(index: int, size: int) -> int | None:
    """An index counted from the front, if there is such an element."""
    return index % size if -size <= index < size else None


# --- convolutions and pooling ---------------------------------------------------------------------


def convolved(site: Site) -> Regions:
    """The window of the operand, without what is padding; and all of the filter, which zeros of the
    padding are multiplied with.
    """
    x, w = site.operands[:2]
    n, channel, *_ = site.index
    group = channel // (w.shape[0] // site.attrs["groups"])
    width = w.shape[1]
    windows, _ = _windows(site, w.shape[2:], x.shape[2:])
    bias = (_one(channel),) if len(site.operands) > 2 and site.operands[2] is not None else None
    channels = slice(group * width, (group + 1) * width)
    return [(_one(n), channels, *windows), (_one(channel), *[slice(None)] * (w.ndim - 1)), bias]


def sum_of_products(site: Site, parts: Parts) -> Any:
    """A convolution's element."""
    x, w, *bias = parts
    _, taps = _windows(site, w.shape[2:], site.operands[0].shape[2:])
    window = np.zeros_like(w)
    window[:, :, *taps] = x
    total = (window * w).sum()
    return total + bias[0].sum() if bias and bias[0] is not None else total


def pooled(site: Site) -> Regions:
    """The window of the first operand, without what is padding."""
    x, kernel = site.operands[0], site.attrs["kernel"]
    attrs = site.attrs | {"stride": site.attrs["stride"] or kernel}
    windows, _ = _windows(site._replace(attrs=attrs), kernel, x.shape[2:])
    return [(_one(site.index[0]), _one(site.index[1]), *windows)]


def _windows(site: Site, kernel: Sequence[int], sizes: Sequence[int]) -> tuple[list, list]:
    """Slices of the operand's and of the kernel's axes, without what lies in the padding."""
    attrs: dict[str, Any] = site.attrs
    stride = attrs.get("stride") or [1] * len(kernel)
    padding = list(attrs.get("padding") or [0] * len(kernel))
    dilation = attrs.get("dilation") or [1] * len(kernel)
    windows, taps = [], []
    for k, (extent, size) in enumerate(zip(kernel, sizes, strict=True)):
        start = site.index[2 + k] * stride[k] - padding[k]
        first = max(0, -(start // dilation[k])) if start < 0 else 0
        last = min(extent, -(-(size - start) // dilation[k]))
        low = start + first * dilation[k]
        windows.append(slice(low, start + (last - 1) * dilation[k] + 1, dilation[k]))
        taps.append(slice(first, last))
    return windows, taps


def _one(p: int) -> slice:
    return slice(p, p + 1)


# --- rules ----------------------------------------------------------------------------------------


def sums_and(relation, *rules: Rule) -> Faults:
    """Of what sums its first operand along `relation`."""
    return Faults(relation, *rules, Rule("inf - inf", lambda x, *others: opposed(x)))


OVERFLOW = Faults(elementwise)  # finite operands give an infinity only where they are large
LOGARITHM = Faults(
    elementwise,
    Rule("log of a negative number", lambda x: x < 0),
    Rule("log of 0", lambda x: x == 0),
)
OUT_OF_DOMAIN = Faults(
    elementwise, Rule("beyond -1 … 1, where it is defined", lambda x: np.abs(x) > 1)
)
WAVE = Faults(elementwise, Rule("of an infinity", infinite))
REMAINDER = Faults(
    elementwise,
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
MATRIX_PRODUCT = Faults(row_by_column, *PRODUCTS)
LINEAR = Faults(linear, *PRODUCTS)
CONVOLUTION = Faults(
    convolved,
    *PRODUCTS,
    Rule(
        "0 of the padding times an infinite weight",
        lambda x, w, *_: (None, infinite(w) & (x.size < w.size)),
    ),
    value=sum_of_products,
)


# --- rows that are exponentiated, normalised ------------------------------------------------------


SOFTMAX = Faults(
    along_axis,
    Rule(
        "all elements of the row are -inf", lambda x, *_: x.size > 0 and bool((x == -np.inf).all())
    ),
    Rule("+inf in the row: inf - inf", lambda x, *_: x == np.inf),
)
SOFTMAX_GRAD = Faults(
    along_axis,
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


def _no_spread(x, *_, epsilon, **__) -> bool:
    return epsilon == 0 and bool((x == x.reshape(-1)[0]).all())


LAYER_NORM = Faults(
    trailing,
    Rule("0 / 0: the row has no spread, and epsilon is 0", _no_spread),
    Rule("an infinity in the row: inf - inf", lambda x, *_, **__: infinite(x)),
)
RMS_NORM = Faults(
    trailing,
    Rule(
        "0 / 0: the row is 0, and epsilon is 0",
        lambda x, *_, epsilon, **__: epsilon == 0 and not x.any(),
    ),
    Rule("an infinity in the row: inf / inf", lambda x, *_, **__: infinite(x)),
)


BATCH_NORM = Faults(
    per_channel,
    Rule(
        "square root of a negative variance",
        lambda x, s, b, mean, var, *, epsilon: (*[None] * 4, var + epsilon < 0),
    ),
    Rule(
        "division by a variance of 0",
        lambda x, s, b, mean, var, *, epsilon: (*[None] * 4, var + epsilon == 0),
    ),
    Rule("inf - inf", lambda x, s, b, mean, *_, **__: infinite(x) & bool(infinite(mean).any())),
)
BATCH_NORM_TRAIN = Faults(
    whole_channel,
    Rule("0 / 0: the channel has no spread, and epsilon is 0", _no_spread),
    Rule("an infinity in the channel: inf - inf", lambda x, *_, **__: infinite(x)),
)


# --- indices --------------------------------------------------------------------------------------

# An index that does not exist reads NaN, so relations give no part of x for it.
MISSING = "an index that does not exist"
_MISSED = Rule(MISSING, lambda x, index, **_: (None, x is None))
GATHER = Faults(picked, _MISSED, value=itself)
GATHER_ELEMENTS = Faults(picked_elements, _MISSED, value=itself)
GATHER_ND = Faults(all_elements, Rule(MISSING, lambda x, index, **_: True))
INDEX = Faults(
    indexed,
    Rule(MISSING, lambda x, *indices, **_: (None, *[x is None for _ in indices])),
    value=itself,
)
