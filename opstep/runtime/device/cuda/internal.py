"""CUDA kernels of the ops that no program names (see `plan.internal`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from opstep.runtime.device.cpu import internal
from opstep.runtime.device.cuda import flagging
from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.cuda.recording import statistics
from opstep.runtime.device.launch import CARRIERS, Arg, Grid, Launch
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.internal import takes_effect

THREADS = 256  # of a block


@cache
def copy_kernel(width: int, guarded: bool):
    """Copies vectors of `width` elements; where it is `guarded`, unless the status tells of a
    failure.
    """
    load, store = Intrinsic("load", width), Intrinsic("store", width)

    def move(x, y, n):
        at = cuda.grid(1) * width
        if at + width <= n:
            store(y, at, load(x, at))
        else:
            for i in range(at, n):
                y[i] = x[i]

    def copy(x, y, n):
        move(x, y, n)

    def update(x, status, y, n):
        if takes_effect(status[0]):
            move(x, y, n)

    return update if guarded else copy


def _copied(x: Arg, y: Arg, *status: Arg) -> Grid:
    itemsize = x.stored.itemsize
    width, carrier = 16 // itemsize, CARRIERS[itemsize]
    source, target = (Arg(TensorType(carrier, a.shape), a.slot) for a in (x, y))
    grid = -(-x.size // (width * THREADS))
    kernel = copy_kernel(width, bool(status))
    return Grid(kernel, source, *status, target, x.size, grid=grid, block=THREADS)


def _update(value: Arg, status: Arg, tensor: Arg) -> Grid | Launch:
    if value.stored is not tensor.stored:
        return internal.CPU["update"](value, status, tensor)
    return _copied(value, tensor, status)


def _snapshot(x: Arg, y: Arg) -> Grid:
    return _copied(x, y)


CUDA: dict[str, Callable[..., Any]] = {
    "update": _update,
    "snapshot": _snapshot,
    "assert": internal.CPU["assert"],
    "statistics": statistics.launches,
    "flag": flagging.launch,
    "flag_several": flagging.launch_several,
}
