"""Convolutions of images with channels last (`plan.layouts`): by cuDNN, or of each channel by
itself by a kernel of ours.

The op alone may be made so, too: images are turned before and behind, which changes no bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from opstep.kernels.conv import cuda_depthwise, cuda_depthwise_last
from opstep.kernels.conv.correlation import geometry_of
from opstep.kernels.conv.vendor import Laid, convolutions
from opstep.kernels.conv.windows import Window
from opstep.kernels.matmul.vendor import Ways
from opstep.kernels.move.cuda_copying import transposed
from opstep.runtime.device.launch import Arg, Grid, Held, Launch
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.layouts import Layout, channels_first, channels_last


def convolutions_last(
    x: Arg, w: Arg, bias: Arg | None, y: Arg, views: Sequence[Window], x_last: bool = False,
    y_last: bool = False,
) -> Ways:  # fmt: skip
    """A convolution of halves by cuDNN with channels last. Images that are not so are turned, and
    so is a result that is not to be so, and filters.
    """
    given, made = _first(x, x_last), _first(y, y_last)
    if not x.stored.is_half or len(made) != 4:
        return
    before, behind = [], []
    seen, filters, result = x, w, y
    if not x_last:
        seen = Held(x.dtype, given, x.stored)
        before.append(_turn(x, seen, given))
    if prod(w.shape[2:]) > 1 and w.shape[1] > 1:
        filters = Held(w.dtype, w.shape, w.stored)
        before.append(_turn(w, filters, w.shape))
    if not y_last:
        result = Held(y.dtype, made, y.stored)
        behind.append(_turn(result, y, made, back=True))
    laid = Laid((given, w.shape, made), (seen, filters, result), before, behind)
    yield from convolutions("forward", x, w, y, tuple(views), bias, laid)


def _first(a: Arg, last: bool) -> tuple[int, ...]:
    """The shape with channels first."""
    return channels_first(a.shape) if last else a.shape


def _turn(x: Arg | Held, y: Arg | Held, shape: tuple[int, ...], back: bool = False) -> Grid:
    """y with channels last of x, whose `shape` has them first; or the way back."""
    sides = shape[1], prod(shape[2:])
    return transposed(x, y, shape[0], *(reversed(sides) if back else sides))


def _ours(x: Arg, w: Arg, b: Arg | None, y: Any, *, layout: Layout) -> list[Grid | Launch]:
    """Where no kernel is for that, what the op does with channels first, and copies around it."""
    alone = _each_alone(x, w, b, y, layout)
    if alone is not None:
        return [alone]
    launches: list[Grid | Launch] = []
    seen, made = x, y
    if layout.x_last:
        seen = Held(x.dtype, channels_first(x.shape), x.stored)
        launches.append(_turn(x, seen, seen.shape, back=True))
    if layout.y_last:
        made = Held(y.dtype, channels_first(y.shape), y.stored)
    launches += layout.op.cuda(seen, w, b, made, **dict(layout.attrs))
    if layout.y_last:
        launches.append(_turn(made, y, made.shape))
    return launches


def _each_alone(x: Arg, w: Arg, b: Arg | None, y: Any, layout: Layout) -> Grid | None:
    """Halves of each channel by itself, in the order of `cuda_depthwise`."""
    groups = dict(layout.attrs)["groups"]
    same = x.stored is w.stored is y.stored and x.stored.is_half
    if not (layout.x_last and layout.y_last and same and groups > 1 and prod(y.shape)):
        return None
    views = layout.op.views_of(w.shape[2:], dict(layout.attrs))
    g = geometry_of(views, y.shape[1:3])
    first, out = (Arg(TensorType(a.dtype, channels_first(a.shape)), 0) for a in (x, y))
    if not cuda_depthwise.is_for(first, out, groups, g) or not cuda_depthwise_last.is_for(x):
        return None
    return cuda_depthwise_last.convolve(x, w, b, y, g)


def _is_taken(x: Arg, w: Arg, b: Arg | None, y: Arg, *, layout: Layout) -> bool:
    return _each_alone(x, w, b, y, layout) is not None


def _vendor(x: Arg, w: Arg, b: Arg | None, y: Arg, *, layout: Layout) -> Ways:
    views = layout.op.views_of(w.shape[2:], dict(layout.attrs))
    return convolutions_last(x, w, b, y, views, layout.x_last, layout.y_last)


channels_last.cuda = _ours
channels_last.is_taken = _is_taken
channels_last.vendor = _vendor
