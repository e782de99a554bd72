"""Convolutions of images that have their channels last, read or written (`plan.layouts`): no image
is turned for one of them alone. Of halves, by `cuda_blocks`, and those of each channel by itself.

Sums are made of the same terms in the same order as with channels first, and so have the same bits.
"""

from __future__ import annotations

from math import prod

from opstep.kernels.conv import cuda_depthwise, cuda_depthwise_last
from opstep.kernels.conv.correlation import Geometry, geometry_of
from opstep.kernels.conv.cuda_blocks import (
    Images,
    correlate_in_blocks,
    in_blocks,
    in_fours,
    tile_and_parts,
    within_reach,
)
from opstep.kernels.conv.cuda_conv import fits, sees_points
from opstep.kernels.matmul.cuda_gemm import halves_of
from opstep.kernels.matmul.cuda_gemm_tiles import cheapest, of_halves
from opstep.runtime.device.launch import Arg, Grid, Seen
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.layouts import Layout, channels_first, channels_last


def _cuda(*args: Arg, layout: Layout) -> list[Grid]:
    found = _launches(*args, layout=layout)
    assert found is not None, "a device takes the convolutions that it has kernels for"
    return found


def _is_taken(*args: Arg, layout: Layout) -> bool:
    return _launches(*args, layout=layout) is not None


def _launches(x, w, b, y, *, layout: Layout) -> list[Grid] | None:
    first = Seen(x, channels_first(x.shape), 0, ()) if layout.x_last else x
    attrs, size = dict(layout.attrs), y.shape[1:3] if layout.y_last else y.shape[2:]
    g = geometry_of(layout.op.views_of(w.shape[2:], attrs), size)
    if not prod(y.shape) or y.stored.name != halves_of(first, w):
        return None
    if attrs["groups"] != 1:
        if not (layout.x_last and layout.y_last):
            return None
        out = Arg(TensorType(y.dtype, channels_first(y.shape)), 0)  # to be looked at alone
        alone = cuda_depthwise.is_for(first, out, attrs["groups"], g)
        if not alone or not cuda_depthwise_last.is_for(x):
            return None
        return [cuda_depthwise_last.convolve(x, w, b, y, g)]
    parts, own = _parts(first, w, b, g), _own_parts(first, w, g)
    few = w.shape[1] <= 4
    if not parts or (few and layout.x_last) or (not layout.y_last and parts != own):
        return None
    seen = Images(x, *first.shape[2:]) if layout.x_last else None
    return correlate_in_blocks(first, w, b, y, 1, g, seen, parts if layout.y_last else 0)


def _parts(x: Arg, w: Arg, bias: Arg | None, g: Geometry) -> int:
    """Of the sums where images have channels first; 0 where other kernels make them."""
    (filters, channels), taps, plane = w.shape[:2], prod(w.shape[2:]), prod(g.out)
    if plane == 1 or not within_reach(x, g):
        return 0
    if not fits(x, g, channels * taps, x.shape[0] * plane):
        return 0
    halves = halves_of(x, w)
    if in_fours(halves, filters, channels, taps, 1):
        return _own_parts(x, w, g)
    if not in_blocks(halves, filters, channels):
        return 0
    if bias is None and sees_points(g, x) and plane % 4 == 0:
        return cheapest(of_halves(), filters, plane, channels, x.shape[0])[1]
    return _own_parts(x, w, g)


def _own_parts(x: Arg, w: Arg, g: Geometry) -> int:
    """Those that `cuda_blocks` takes by itself."""
    return tile_and_parts(w.shape[0], w.shape[1], g, x.shape[0], 1)[1]


channels_last.cuda = _cuda
channels_last.is_taken = _is_taken
