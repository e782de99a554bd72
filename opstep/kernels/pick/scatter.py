"""Writing elements by index: scatter, scatter_add, scatter_nd.

An index below 0 counts from the end; writes with an index out of range are dropped. Several writes
to one element are applied in row-major order: the last one wins, or all add up, with the same bits
in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.move.copying import (
    advance_odometer,
    as_carriers,
    copy_all,
    counter_words,
    fill_block,
    merged,
    odometer,
    set_odometer,
)
from opstep.kernels.pick import cuda_segments
from opstep.kernels.pick.index import (
    add_elements,
    check_aligned,
)
from opstep.kernels.rules import indices as lost
from opstep.kernels.rules.axes import axis_of, strides_of
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Grid, Launch, Scratch
from opstep.runtime.ir.op import Mismatch, Op, Traits


class Scatter(Op):
    """Base: y is x, where y[index[i, j, k], j, k] (for axis 0) meets source[i, j, k]."""

    inplace = (0,)
    traits = Traits(overwrites=True)
    outside = lost.scattered

    def infer(x, index, source, *, axis, **attrs):
        check_aligned(x, index, axis)
        if source.shape != index.shape:
            raise Mismatch(f"{source} does not hold an element for each index of {index}", 2)
        return x

    @classmethod
    def oracle(cls, x, index, source, *, axis):
        return one_by_one(cls.combine, x, index, source, axis)

    @classmethod
    def cpu(cls, x, index, source, y, *, axis):
        return [*copy_all(x, y), *scattered(cls.combine, source, index, y, axis)]

    @classmethod
    def cuda(cls, x, index, source, y, *, axis):
        return [*copy_all(x, y), *scattered(cls.combine, source, index, y, axis, on_gpu=True)]


def replace_element(old, new):
    return new


class scatter(Scatter):
    """x with y[index[i, j, k], j, k] = source[i, j, k] (for axis 0, and so on).

    The gradient with respect to source assumes that no two elements have the same index.
    """

    signature = "scatter(x: T, index: X, source: T, *, axis: int = 0)"
    source = "torch.scatter, ONNX ScatterElements"
    traits = Traits(moves=True)
    combine = staticmethod(replace_element)

    def grad(g, operands, results, grads, *, axis):
        x, index, source = operands
        gy = grads[0]
        zeros = g.full(shape=index.shape, value=0.0, dtype=gy.dtype)
        g_source = g.gather_elements(gy, index, axis=axis, missing=0.0)
        return (
            g.to_dtype(g.scatter(gy, index, zeros, axis=axis), x.dtype),
            None,
            g.to_dtype(g_source, source.dtype),
        )


class scatter_add(Scatter):
    """x with y[index[i, j, k], j, k] += source[i, j, k] (for axis 0, and so on)."""

    signature = "scatter_add(x: N, index: X, source: N, *, axis: int = 0)"
    source = 'torch.scatter_add, ONNX ScatterElements(reduction="add")'
    combine = staticmethod(add_elements)

    def flops(x, index, source, *, axis):
        return index.size

    def grad(g, operands, results, grads, *, axis):
        x, index, source = operands
        g_source = g.gather_elements(grads[0], index, axis=axis, missing=0.0)
        return g.to_dtype(grads[0], x.dtype), None, g.to_dtype(g_source, source.dtype)


class gather_elements_grad(Op):
    """The gradient of gather_elements with respect to x, whose shape is an attribute: scatter_add
    to zeros.
    """

    signature = "gather_elements_grad(gy: F, index: X, *, shape: dims, axis: int = 0)"

    def infer(gy, index, *, shape, axis):
        x = gy.with_shape(shape)
        check_aligned(x, index, axis)
        if gy.shape != index.shape:
            raise Mismatch(f"{gy} does not hold an element for each index of {index}", 1)
        return x

    def oracle(gy, index, *, shape, axis):
        return one_by_one(add_elements, np.zeros(shape), index, gy, axis)

    def cpu(gy, index, gx, *, shape, axis):
        clear = fill_block(gx, 0, (gx.size,), (1,))
        return [*clear, *scattered(add_elements, gy, index, gx, axis)]

    def cuda(gy, index, gx, *, shape, axis):
        clear = fill_block(gx, 0, (gx.size,), (1,))
        return [*clear, *scattered(add_elements, gy, index, gx, axis, on_gpu=True)]

    def flops(gy, index, **attrs):
        return gy.size

    def grad(g, operands, results, grads, *, shape, axis):
        return g.gather_elements(grads[0], operands[1], axis=axis, missing=0), None


# --- oracles --------------------------------------------------------------------------------------


def one_by_one(combine: Callable, x, index, source, axis: int):
    y = x.copy()
    a, n = axis % x.ndim, x.shape[axis]
    for place in np.ndindex(index.shape):
        k = index[place] + n if index[place] < 0 else index[place]
        if 0 <= k < n:
            into = (*place[:a], k, *place[a + 1 :])
            y[into] = combine(y[into], source[place])
    return y


# --- launches -------------------------------------------------------------------------------------


def scattered(
    combine: Callable,
    source: Arg | Scratch,
    index: Arg,
    y: Arg,
    axis: int,
    on_gpu: bool = False,
    into: Scratch | None = None,
) -> list[Launch] | list[Grid]:
    """`source` combined into y, or working memory like it, which is there already."""
    a = axis_of(axis, y.rank)
    if index.size == 0 or y.size == 0:
        return []
    if combine is replace_element:
        source, y = as_carriers(source, y)
    if on_gpu:
        found = cuda_segments.scattered(combine, source, index, into or y, y.shape, a)
        if found is not None:
            return found
    steps, inner = strides_of(y.shape), strides_of(index.shape)
    rest = [k for k in range(y.rank) if k != a]
    *outer, (count, ys, xs) = merged(
        [index.shape[k] for k in rest], [steps[k] for k in rest], [inner[k] for k in rest]
    )
    table, counters = odometer(outer)
    along = (index.shape[a], inner[a], y.shape[a], steps[a])
    return [
        Launch(
            scatter_columns(combine),
            *(source, index, into or y, *along, count, xs, ys, len(outer), table, counters),
            units=index.size // index.shape[a],
            grain=max(1, 32768 // index.shape[a]),
        )
    ]


# --- kernels: units are columns, all of whose elements one lane handles in order ------------------


@cache
def scatter_columns(combine: Callable) -> Callable:
    """The odometer walks y and the index, both without the axis: `length` indices `step` apart in
    the
    index, into n places `along` apart in y."""

    def kernel(
        source, index, y, length, step, n, along, count, xs, ys, rank, table, counters, lo, hi, lane
    ):
        at = offset(counters, lane * counter_words(rank))
        row = lo // count
        column = lo - row * count
        set_odometer(at, row, rank, table)
        left = hi - lo
        while left > 0:
            m = min(count - column, left)
            target = offset(y, at[rank] + column * ys)
            first = at[rank + 1] + column * xs
            # neighbours in memory after each other: along the axis where that is the last, else
            # across
            outside, inside, far, near = length, m, step, xs
            if step == 1:
                outside, inside, far, near = m, length, xs, step
            for i in range(outside):
                for j in range(inside):
                    p = first + i * far + j * near
                    k = np.int64(index[p])
                    k = k + n if k < 0 else k
                    if k >= 0 and k < n:
                        into = k * along + (i if step == 1 else j) * ys
                        target[into] = combine(target[into], source[p])
            left -= m
            column = 0
            advance_odometer(at, rank, table)

    kernel.__name__ = f"scatter_{combine.__name__}"
    return kernel
