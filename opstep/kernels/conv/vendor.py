"""Convolutions by NVIDIA's cuDNN.

`convolutions` gives pairs of a name and what makes the launches, see `Op.vendor`. Nothing of the
library is loaded before the first pair is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

from opstep.kernels.conv.cuda_edges import mended
from opstep.kernels.conv.windows import Window
from opstep.kernels.matmul.vendor import ALIGNMENT, Ways, add_bias, common_dtype
from opstep.runtime.device.launch import Arg, Call, Held
from opstep.runtime.plan.layouts import LAST


class Laid(NamedTuple):
    """Images, filters and outputs with channels last: their shapes, as with channels first; what
    stands for them; and the launches before and behind.
    """

    shapes: tuple[tuple[int, ...], ...]
    arrays: tuple[Arg | Held, ...]
    before: Sequence[Any]
    behind: Sequence[Any]


def convolutions(
    kind: str,
    images: Arg,
    filters: Arg,
    outputs: Arg,
    windows: tuple[Window, ...],
    bias: Arg | None = None,
    laid: Laid | None = None,
) -> Ways:
    """One of the three ("forward", "images", "filters") from the other two. `bias` has one element
    for each channel of the result.
    """
    from opstep.runtime.device.cuda.vendor import cudnn

    args = [images, filters, outputs]
    dtype = common_dtype(*args, *([bias] if bias else []))
    # cuDNN 9.19 takes uneven padding, and gives wrong gradients for it (engine 1)
    even = all(window.before == window.after for window in windows)
    sizes = [a.size for a in args]
    if not even or not dtype or not cudnn.supports(dtype) or 0 in sizes or max(sizes) >= 1 << 31:
        return
    shapes = laid.shapes if laid else tuple(a.shape for a in args)
    edges = mended(outputs, filters, bias, images, windows) if kind == "images" else []
    images, filters, outputs = laid.arrays if laid else args
    passed = {
        "forward": [images, filters, outputs],
        "images": [outputs, filters, images],
        "filters": [outputs, images, filters],
    }[kind]
    channels, *plane = shapes[2 if kind == "forward" else 0][1:]
    own = [] if bias is None else [add_bias(bias, passed[-1], channels, 1 if laid else prod(plane))]

    def ways(added: bool) -> Ways:
        """`added`: by plans that add the bias, else by plans behind which a launch of ours does."""
        key = cudnn.Convolution(
            *(kind, dtype, *shapes, tuple(w.before for w in windows)),
            *(tuple(w.after for w in windows), tuple(w.stride for w in windows)),
            *(tuple(w.dilation for w in windows), added, ALIGNMENT, laid is not None),
        )
        first = [] if added else [*own, *edges]
        then = [*first, *(laid.behind if laid else ())]
        called = [*passed, bias] if added and bias else passed
        for engine in cudnn.engines(key):
            name = f"cudnn{LAST if laid else ''} {engine.name}"
            name += " + bias" if first else ""
            yield name, partial(_planned, engine, laid.before if laid else (), called, then)

    found = [ways(added) for added in ((True, False) if bias and kind == "forward" else (False,))]
    for best in zip_longest(*found):  # a plan that adds the bias is often not the fastest
        yield from (way for way in best if way)


def _planned(engine: Any, before: Sequence[Any], args: list, behind: list) -> list | None:
    planned = engine.plan()
    return None if planned is None else [*before, Call(planned, *args), *behind]
