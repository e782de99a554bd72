"""Convolutions, of any layout: with what is between elements of the operand, they are transposed
ones; those whose filters are larger than their result are derivatives by filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from opstep.frontends.jax.body import Body, Dim, Var
from opstep.frontends.jax.errors import Untranslatable
from opstep.frontends.jax.rules.layout import padded, spaced
from opstep.frontends.jax.rules.pointwise import converted
from opstep.frontends.jax.rules.registry import rule
from opstep.frontends.jax.types import sizes


class _Windows(NamedTuple):
    """What there is for each axis of an image."""

    stride: list[int]
    low: list[Any]  # padding
    high: list[Any]
    spread: list[int]  # of the operand's elements
    dilation: list[int]  # of the filter's


@rule("conv_general_dilated")
def conv_general_dilated(
    b: Body, x: Var, w: Var, *, window_strides: Any, padding: Any, lhs_dilation: Any,
    rhs_dilation: Any, dimension_numbers: Any, feature_group_count: int, batch_group_count: int,
) -> Var:  # fmt: skip
    of_x, of_w, of_y = (list(map(int, spec)) for spec in dimension_numbers)
    rank = len(of_x) - 2
    if not 1 <= rank <= 3:
        raise Untranslatable(f"a convolution along {rank} axes")
    windows = _Windows(
        [int(s) for s in window_strides], [p[0] for p in map(sizes, padding)],
        [p[1] for p in map(sizes, padding)], [int(d) for d in lhs_dilation],
        [int(d) for d in rhs_dilation],
    )  # fmt: skip
    dtype = b.out.dtype
    flipped = b.source(w, "flip")
    is_flipped = flipped is not None and sorted(flipped[1]["axes"]) == sorted(of_w[2:])
    is_flipped = is_flipped and all(s == 1 for s in windows.stride)
    if is_flipped and flipped is not None:
        w = flipped[0]
    out = [b.out.shape[k] for k in of_y[2:]]
    x, w = (converted(b, v, a, dtype) for v, a in zip((x, w), b.ins, strict=True))
    x, w = b.transposed(x, of_x), b.transposed(w, of_w)
    groups = feature_group_count
    if _is_by_filters(w, out) and groups == 1 and all(d == 1 for d in windows.spread):
        y = _by_filters(b, x, w, windows, out, batch_group_count)
    else:
        if batch_group_count > 1:
            x, groups = _groups_of_channels(b, x, batch_group_count), batch_group_count
        is_transposed = is_flipped or any(d > 1 for d in windows.spread)
        if is_transposed and all(s == 1 for s in windows.stride):
            y = _transposed(b, x, w, windows, groups, is_flipped)
        else:
            x = spaced(b, x, [0, 0, *(d - 1 for d in windows.spread)], 0)
            y = _plain(b, x, w, windows, groups)
    order = [of_y.index(k) for k in range(rank + 2)]
    return b.transposed(y, order)


def _is_by_filters(w: Var, out: Sequence[Dim]) -> bool:
    """Whether what is called the filter is as large as an image, and the result as a filter."""
    filters = [*w.shape[2:], *out]
    if not all(isinstance(d, int) for d in filters):
        return False
    ours = theirs = 1
    for d, o in zip(w.shape[2:], out, strict=True):
        ours, theirs = ours * d, theirs * o  # pyright: ignore[reportOperatorIssue]
    return theirs < ours  # pyright: ignore[reportOperatorIssue]


def _groups_of_channels(b: Body, x: Var, groups: int) -> Var:
    """Groups of a batch [G*N, C, …] as groups of channels [N, G*C, …]."""
    batch, channels, *rest = x.shape
    split = b.reshape(x, shape=[groups, batch // groups, channels, *rest])
    turned = b.transpose(split, perm=[1, 0, *range(2, len(x.shape) + 1)])
    return b.reshape(turned, shape=[batch // groups, groups * channels, *rest])


def _op(name: str, rank: int, ending: str = "") -> str:
    return f"{name}{rank}d{ending}"


def _attrs(windows: _Windows, low: Sequence[Any], high: Sequence[Any], groups: int) -> dict:
    found: dict[str, Any] = {"stride": windows.stride, "dilation": windows.dilation}
    if any(low) or any(high):
        found["padding"] = list(low) if list(low) == list(high) else [*low, *high]
    return found | {"groups": groups}


def cropped(b: Body, x: Var, low: Sequence[Any], high: Sequence[Any]) -> tuple[Var, list, list]:
    """x without what paddings below 0 leave out, and those above."""
    if any(not isinstance(p, int) for p in (*low, *high)):
        return padded(b, x, [0, 0, *low], [0, 0, *high], 0), [0] * len(low), [0] * len(low)
    x = padded(
        b, x, [0, 0, *(min(p, 0) for p in low)], [0, 0, *(min(p, 0) for p in high)], 0
    )  # fmt: skip
    return x, [max(p, 0) for p in low], [max(p, 0) for p in high]


def _plain(b: Body, x: Var, w: Var, windows: _Windows, groups: int) -> Var:
    rank = len(windows.stride)
    x, low, high = cropped(b, x, windows.low, windows.high)
    return b.op(_op("conv", rank), x, w, **_attrs(windows, low, high, groups))


def _transposed(
    b: Body, x: Var, w: Var, windows: _Windows, groups: int, is_flipped: bool
) -> Var:  # fmt: skip
    """As a transposed convolution, whose filters are the other way round."""
    rank = len(windows.stride)
    if not is_flipped:
        w = b.flip(w, axes=list(range(2, rank + 2)))
    out, channels, *rest = w.shape
    if groups > 1:
        w = b.reshape(w, shape=[groups, out // groups, channels, *rest])
        w = b.transpose(w, perm=[0, 2, 1, *range(3, rank + 3)])
        w = b.reshape(w, shape=[groups * channels, out // groups, *rest])
    else:
        w = b.transpose(w, perm=[1, 0, *range(2, rank + 2)])
    reach = [(n - 1) * d for n, d in zip(w.shape[2:], windows.dilation, strict=True)]
    low = [r - p for r, p in zip(reach, windows.low, strict=True)]
    high = [r - p for r, p in zip(reach, windows.high, strict=True)]
    if not all(isinstance(p, int) for p in (*low, *high)):
        raise Untranslatable("a padding that is a symbol")
    over = [max(p, 0) for p in low], [max(p, 0) for p in high]
    windows = windows._replace(stride=windows.spread)
    y = b.op(_op("conv_transpose", rank), x, w, **_attrs(windows, *over, groups))
    less = [-min(p, 0) for p in low], [-min(p, 0) for p in high]
    return padded(b, y, [0, 0, *less[0]], [0, 0, *less[1]], 0)


def _by_filters(
    b: Body, x: Var, w: Var, windows: _Windows, out: Sequence[Dim], groups: int
) -> Var:  # fmt: skip
    """As the derivative by filters: the images are x with channels for samples."""
    rank = len(windows.stride)
    swapped = [1, 0, *range(2, rank + 2)]
    x, gy = b.transposed(x, swapped), b.transposed(w, swapped)
    high = [
        s * (o - 1) + 1 + d * (n - 1) - size - p
        for s, o, d, n, size, p in zip(
            windows.stride, out, windows.dilation, w.shape[2:], x.shape[2:], windows.low,
            strict=True,
        )
    ]  # fmt: skip
    x, low, high = cropped(b, x, windows.low, high)
    found = b.op(
        _op("conv", rank, "_weight_grad"), gy, x, kernel=list(out),
        **_attrs(windows._replace(stride=windows.dilation, dilation=windows.stride), low, high,
                 groups),
    )  # fmt: skip
    return b.transposed(found, swapped)
