"""Matrix products by NVIDIA's cuBLASLt.

`products` gives pairs of a name and what makes the launches, see `Op.vendor`. Nothing of the
library is loaded before the first pair is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from opstep.runtime.device.cuda.compiling.names import cuda, mod32, pointer_to, real, spread
from opstep.runtime.device.launch import Arg, Call, Grid, Held
from opstep.runtime.device.source import Intrinsic

Ways = Iterator[tuple[str, Callable[[], list | None]]]
ALIGNMENT = 64  # bytes, of every tensor: see `plan.packing`
_THREADS = 256


# --- matrix products ------------------------------------------------------------------------------


def products(
    a: Arg,
    b: Arg,
    y: Arg,
    shape: Sequence[int],
    strides: tuple[Sequence[int], Sequence[int]],
    m: int,
    n: int,
    k: int,
    turned: tuple[bool, bool] = (False, False),
    bias: Arg | None = None,
) -> Ways:
    """y = a·b (+ a bias for each column), row-major: [m, k] and [k, n], as many as `shape` counts,
    `strides` elements of a and b apart along each of its axes. `turned`: stored [k, m], [n, k].
    """
    from opstep.runtime.device.cuda.vendor import cublas

    batch = _one_stride(shape, *strides)
    dtype = common_dtype(a, b, y, *([bias] if bias else []))
    if batch is None or not dtype or not cublas.supports(dtype) or 0 in (y.size, k):
        return
    count, of_a, of_b = batch
    limit = 1 << 31
    if max(m, n, k, count) >= limit:
        return
    for added in (True, False) if bias else (False,):
        key = cublas.Product(dtype, m, n, k, *turned, count, (of_a, of_b, m * n), added, ALIGNMENT)
        args = [a, b, y, bias] if added else [a, b, y]
        for algorithm in cublas.algorithms(key):
            then = [] if added or bias is None else [add_bias(bias, y, n, 1)]
            name = algorithm.name + (" + bias" if then else "")
            yield name, partial(_launches, algorithm, args, then)


def _launches(routine: Any, args: list[Arg], then: list) -> list:
    return [Call(routine, *args), *then]


def common_dtype(*args: Arg) -> str:
    """The dtype that all have in memory; empty where they differ, or are converted."""
    stored = args[0].stored
    plain = all(a.stored is stored for a in args)
    computed = args[0].dtype
    return stored.name if plain and (computed is stored or stored.is_half) else ""


def _one_stride(
    shape: Sequence[int], a: Sequence[int], b: Sequence[int]
) -> tuple[int, int, int] | None:
    """(count, elements from one matrix of a to the next, the same of b) where all axes of a batch
    can be walked as one.
    """
    axes = [axis for axis in zip(shape, a, b, strict=True) if axis[0] != 1]
    if not axes:
        return 1, 0, 0
    count, of_a, of_b = axes[-1]
    for size, step_a, step_b in reversed(axes[:-1]):
        if (step_a, step_b) != (of_a * count, of_b * count):
            return None
        count *= size
    return count, of_a, of_b


# --- bias -----------------------------------------------------------------------------------------


def add_bias(bias: Arg, y: Arg | Held, channels: int, plane: int) -> Grid:
    """y[..., c, p] += bias[c] in place, for `plane` elements of each channel."""
    width, along = (channels, True) if plane == 1 else (plane, False)
    wide = 1 if width % 4 else 4
    block = min(_THREADS, 32 * -(-width // (32 * wide)))
    grid = (y.size // width, -(-width // (block * wide)))
    return Grid(adding_bias(wide, along), y, bias, channels, width, grid=grid, block=block)


@cache
def adding_bias(wide: int, along: bool):
    """The kernel for rows of elements, so many at once: of a channel each, or `along` all of
    them.
    """
    load, store, gather = (Intrinsic(name, wide) for name in ("load", "store", "gather"))

    def add_to_rows(y, bias, channels, width):
        row = cuda.blockIdx.x
        i = (cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x) * wide
        if i < width:
            held = pointer_to(cuda.local.array(wide, real))
            spread(held, load(y, row * width + i))
            for e in range(wide):
                held[e] += bias[i + e if along else mod32(row, channels)]
            store(y, row * width + i, gather(held))

    return add_to_rows
