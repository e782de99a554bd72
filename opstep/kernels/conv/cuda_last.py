"""Convolutions of halves whose images have their channels last, read or written: no image is turned
for one of them alone. Those of each channel by itself read and write them so.

Sums are made of the same terms in the same order as with channels first, and so have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from opstep.kernels.conv import cuda_depthwise, cuda_depthwise_last
from opstep.kernels.conv.correlation import Geometry, geometry_of
from opstep.kernels.conv.cuda_blocks import (
    Seen,
    correlate_seen,
    in_blocks,
    in_fours,
    prepared,
    prepared_fours,
    tile_and_parts,
    within_reach,
)
from opstep.kernels.conv.cuda_conv import fits, sees_points
from opstep.kernels.conv.windows import Window
from opstep.kernels.matmul.cuda_gemm import halves_of
from opstep.kernels.matmul.cuda_gemm_tiles import cheapest, of_halves
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.layouts import channels_first


def correlate(
    x: Arg | None, first: Arg, w: Arg, bias: Arg | None, y: Any, views: Sequence[Window],
    groups: int, y_last: bool,
) -> list[Grid] | None:  # fmt: skip
    """The launches; None where there are no kernels for that. `x`: images with channels last, or
    None; `first`: they as they are with channels first, at least in shape.
    """
    g = geometry_of(views, y.shape[1:3] if y_last else y.shape[2:])
    if groups != 1:
        return _each_alone(x, first, w, bias, y, groups, g) if x is not None and y_last else None
    filters, channels, taps = w.shape[0], first.shape[1], len(g.rows) * len(g.columns)
    halves = halves_of(first, w)
    if y.stored.name != halves or not within_reach(first, g) or g.depth.out != 1:
        return None
    parts = _parts(first, halves, filters, channels, taps, bias, g)
    if not parts or w.shape[1] != channels:
        return None
    if channels <= 4:
        if x is not None:
            return None
        launches, seen, laid, line = prepared_fours(first, w, g)
        channels = 4
    else:
        seen = None if x is None else Seen(x, *first.shape[2:])
        launches, seen, laid, line, g = prepared(first, w, 1, g, seen)
    bf16 = halves == "bf16"
    if not y_last and parts != tile_and_parts(filters, channels, g, first.shape[0], 1)[1]:
        return None
    last = parts if y_last else 0
    return launches + correlate_seen(seen, laid, bias, y, 1, channels, g, bf16, line, last=last)


def _each_alone(
    x: Arg, first: Arg, w: Arg, bias: Arg | None, y: Any, groups: int, g: Geometry
) -> list[Grid] | None:
    """Of each channel by itself, in the order of `cuda_depthwise`."""
    if not halves_of(first, w) or y.stored is not x.stored:
        return None
    out = Arg(TensorType(y.dtype, channels_first(y.shape)), 0)  # to be looked at alone
    if not cuda_depthwise.is_for(first, out, groups, g) or not cuda_depthwise_last.is_for(x):
        return None
    return [cuda_depthwise_last.convolve(x, w, bias, y, g)]


def _parts(
    x: Arg, halves: str, filters: int, channels: int, taps: int, bias: Arg | None, g: Geometry
) -> int:
    """Of the sums where images have channels first; 0 where other kernels make them."""
    images, plane = x.shape[0], prod(g.out)
    if not fits(x, g, channels * taps, images * plane):
        return 0
    if in_fours(halves, filters, channels, taps, 1):
        return tile_and_parts(filters, 4, g, images, 1)[1]
    if not in_blocks(halves, filters, channels) or plane == 1:
        return 0
    if bias is None and sees_points(g, x) and plane % 4 == 0:
        return cheapest(of_halves(), filters, plane, channels, images)[1]
    return tile_and_parts(filters, channels, g, images, 1)[1]
