"""Convolutions by NVIDIA's cuDNN.

`convolutions` gives pairs of a name and what makes the launches, see `Op.vendor`. Nothing of the
library is loaded before the first pair is asked for.
"""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from math import prod
from typing import Any

from opstep.kernels.conv.cuda_edges import mended
from opstep.kernels.conv.windows import Window
from opstep.kernels.matmul.vendor import ALIGNMENT, Ways, add_bias, common_dtype
from opstep.runtime.device.launch import Arg, Call


def convolutions(
    kind: str,
    images: Arg,
    filters: Arg,
    outputs: Arg,
    windows: tuple[Window, ...],
    bias: Arg | None = None,
) -> Ways:
    """One of the three ("forward", "images", "filters") from the other two. `bias` has one element
    for each channel of the result.
    """
    from opstep.runtime.device.cuda.vendor import cudnn

    result = {"forward": outputs, "images": images, "filters": filters}[kind]
    read = {
        "forward": (images, filters),
        "images": (outputs, filters),
        "filters": (outputs, images),
    }
    args = [*read[kind], result]
    dtype = common_dtype(*args, *([bias] if bias else []))
    empty = any(a.size == 0 for a in args)
    # cuDNN 9.19 takes uneven padding, and gives wrong gradients for it (engine 1)
    even = all(window.before == window.after for window in windows)
    if (
        not even
        or not dtype
        or not cudnn.supports(dtype)
        or empty
        or max(a.size for a in args) >= 1 << 31
    ):
        return
    ways = [
        _ways(kind, dtype, images, filters, outputs, windows, bias, args, added)
        for added in ((True, False) if bias and kind == "forward" else (False,))
    ]
    for best in zip_longest(*ways):  # a plan that adds the bias is often not the fastest
        yield from (way for way in best if way)


def _ways(
    kind: str, dtype: str, images: Arg, filters: Arg, outputs: Arg,
    windows: tuple[Window, ...], bias: Arg | None, args: list[Arg], added: bool,
) -> Ways:  # fmt: skip
    """`added`: by plans that add the bias, else by plans behind which a launch of ours does."""
    from opstep.runtime.device.cuda.vendor import cudnn

    key = cudnn.Convolution(
        *(kind, dtype, images.shape, filters.shape, outputs.shape),
        *(tuple(w.before for w in windows), tuple(w.after for w in windows)),
        *(tuple(w.stride for w in windows), tuple(w.dilation for w in windows)),
        *(added, ALIGNMENT),
    )
    for engine in cudnn.engines(key):
        then = [] if added or bias is None else [add_bias(bias, args[-1], *_channels(args[-1]))]
        if kind == "images":
            then += mended(outputs, filters, bias, images, windows)
        passed = [*args, bias] if added and bias else args
        name = f"cudnn {engine.name}" + (" + bias" if then else "")
        yield name, partial(_planned, engine, passed, then)


def _planned(engine: Any, args: list[Arg], then: list) -> list | None:
    planned = engine.plan()
    return None if planned is None else [Call(planned, *args), *then]


def _channels(y: Arg) -> tuple[int, int]:
    return y.shape[1], prod(y.shape[2:])
