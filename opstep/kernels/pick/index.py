"""Elements picked by index: gather, gather_elements, gather_nd, embedding, one_hot, and their
gradients.

An index below 0 counts from the end. An index out of range reads NaN (for integers, the largest
value), and is ignored in a gradient; memory outside a tensor is never touched.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from opstep.kernels.move.copying import (
    advance_odometer,
    as_carrier,
    counter_words,
    fill_block,
    merged,
    odometer,
    set_odometer,
)
from opstep.kernels.pick import cuda_index as gpu
from opstep.kernels.pick import cuda_segments
from opstep.kernels.rules import indices as lost
from opstep.kernels.rules.axes import around, axis_of, strides_of
from opstep.kernels.rules.literals import bits_of, check_value, nowhere
from opstep.kernels.rules.pitfalls import GATHER, GATHER_ELEMENTS
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.types import DType, TensorType


def add_elements(old, new):
    return old + new


class gather(Op):
    """The slices of x along `axis` selected by `index`; the axis is replaced by index's axes."""

    traits = Traits(picks=True, moves=True)
    signature = "gather(x: T, index: X, *, axis: int = 0)"
    source = "torch.index_select, ONNX Gather"
    outside = lost.picked
    faults = GATHER

    def infer(x, index, *, axis):
        a = axis_of(axis, x.rank)
        return x.with_shape((*x.shape[:a], *index.shape, *x.shape[a + 1 :]))

    def oracle(x, index, *, axis):
        if x.shape[axis] == 0:
            a = axis % x.ndim
            return np.full((*x.shape[:a], *index.shape, *x.shape[a + 1 :]), unread(x), x.dtype)
        at, exists = _existing(index, x.shape[axis])
        y = np.take(x, at, axis)
        after = x.ndim - axis % x.ndim - 1
        return np.where(exists.reshape(exists.shape + (1,) * after), y, unread(x)).astype(x.dtype)

    def cpu(x, index, y, *, axis):
        return _gather_rows(x, index, y, axis_of(axis, x.rank))

    def grad(g, operands, results, grads, *, axis):
        x, index = operands
        a = axis_of(axis, x.type.rank)
        return g.gather_grad(grads[0], index, size=x.shape[a], axis=a), None


class embedding(Op):
    """The rows of `weight` selected by `index`. The row `padding_index` gets no gradient.

    weight: [V, …]; index: any shape.
    """

    traits = Traits(picks=True, moves=True)
    signature = "embedding(weight: T, index: X, *, padding_index: int = none)"
    source = "torch.nn.functional.embedding, ONNX Gather"
    outside = lost.picked
    faults = GATHER

    def infer(weight, index, *, padding_index):
        axis_of(0, weight.rank, 0)
        _want_row(padding_index, weight.shape[0], "padding_index")
        return weight.with_shape((*index.shape, *weight.shape[1:]))

    def oracle(weight, index, *, padding_index):
        return gather.oracle(weight, index, axis=0)

    def cpu(weight, index, y, *, padding_index):
        return _gather_rows(weight, index, y, 0)

    def grad(g, operands, results, grads, *, padding_index):
        weight, index = operands
        size = weight.shape[0]
        return g.gather_grad(grads[0], index, size=size, ignored=padding_index), None


def _want_row(row: int | None, rows: Dim, attribute: str) -> None:
    """Raises Mismatch where there is no such row; below 0 they count from the end."""
    if row is not None and isinstance(rows, int) and not -rows <= row < rows:
        raise Mismatch(f"{attribute}={row} is none of {rows} rows", attribute)


class gather_grad(Op):
    """The gradient of gather and embedding: the gradient of each slice, added where it was read.

    `size` is the extent of the axis; slices whose index is `ignored` are skipped.
    """

    signature = "gather_grad(gy: F, index: X, *, size: dim, axis: int = 0, ignored: int = none)"
    source = "ATen embedding_dense_backward"
    outside = lost.summed

    def infer(gy, index, *, size, axis, ignored):
        rank = gy.rank - index.rank + 1
        a = axis_of(axis, rank)
        if gy.shape[a : a + index.rank] != index.shape:
            raise Mismatch(f"{gy} does not hold a part for each index of {index}", 1)
        _want_row(ignored, size, "ignored")
        return gy.with_shape((*gy.shape[:a], size, *gy.shape[a + index.rank :]))

    def oracle(gy, index, *, size, axis, ignored):
        rank = gy.ndim - index.ndim + 1
        a = axis % rank
        gx = np.zeros((*gy.shape[:a], size, *gy.shape[a + index.ndim :]))
        at, exists = _existing(index, size)
        if ignored is not None:
            exists &= at != (ignored + size if ignored < 0 else ignored)
        parts = gy.reshape((*gy.shape[:a], index.size, *gx.shape[a + 1 :]))
        parts = np.moveaxis(parts, a, 0)[exists.ravel()]
        np.add.at(np.moveaxis(gx, a, 0), at.ravel()[exists.ravel()], parts)
        return gx

    def cpu(gy, index, gx, *, size, axis, ignored):
        outer, n, inner = around(gx.shape, axis_of(axis, gx.rank))
        places = index.size
        skipped = -1 if ignored is None else (ignored + n if ignored < 0 else ignored)
        grain = max(16, 32768 // max(places + n, 1))
        return Launch(
            *(add_rows, gy, index, gx, places, n, inner, skipped),
            units=outer * inner if n else 0,
            grain=grain,
        )

    def cuda(gy, index, gx, *, size, axis, ignored):
        a = axis_of(axis, gx.rank)
        outer, n, inner = around(gx.shape, a)
        skipped = -1 if ignored is None else (ignored + n if ignored < 0 else ignored)
        steps, places = strides_of(index.shape), index.size
        clear = fill_block(gx, 0, (gx.size,), (1,))
        if not gx.size or not places:
            return clear
        target = cuda_segments.Target(
            index.shape,
            (0,) * index.rank,
            (gpu.Index(index, n, 1, steps, skipped=skipped),),
            n,
            cuda_segments.walk((n,), (inner,), (inner,)),
            cuda_segments.walk((outer, inner), (n * inner, 1), (places * inner, 1)),
            tuple(s * inner for s in steps),
        )
        found = cuda_segments.combined(add_elements, gy, gx, target)
        return (
            [*clear, *found]
            if found
            else gather_grad.cpu(gy, index, gx, size=size, axis=axis, ignored=ignored)
        )

    def grad(g, operands, results, grads, *, size, axis, ignored):
        gy, index = operands
        count = g.extent(of=[size], dtype=index.dtype)
        at = g.where(g.less(index, 0), g.add(index, count), index)
        counts = g.logical_and(g.greater_equal(at, 0), g.less(at, count))
        if ignored is not None:
            skipped = ignored if ignored >= 0 else g.add(count, ignored)
            counts = g.logical_and(counts, g.not_equal(at, skipped))
        after = gy.type.rank - index.type.rank - axis_of(axis, results[0].type.rank)
        wide = g.reshape(counts, shape=(*index.shape, *(1,) * after))
        return g.where(wide, g.gather(grads[0], index, axis=axis), 0.0), None

    def flops(gy, index, **attrs):
        return gy.size


class gather_elements(Op):
    """y[i, j, k] = x[index[i, j, k], j, k] for axis 0, and so on: one element per index.

    index has x's rank, and is not larger than x along the other axes. An index out of range reads
    `missing`, if set.
    """

    traits = Traits(picks=True, moves=True)
    signature = "gather_elements(x: T, index: X, *, axis: int = 0, missing: number = none)"
    source = "torch.gather, ONNX GatherElements"
    outside = lost.elements
    faults = GATHER_ELEMENTS

    def infer(x, index, *, axis, missing):
        check_value(missing or 0, x.dtype, "missing")
        check_aligned(x, index, axis)
        return x.with_shape(index.shape)

    def oracle(x, index, *, axis, missing):
        x = x[aligned(x.shape, index.shape, axis)]
        if x.shape[axis] == 0:
            return np.full(index.shape, unread(x, missing), x.dtype)
        at, exists = _existing(index, x.shape[axis])
        return np.where(exists, np.take_along_axis(x, at, axis), unread(x, missing)).astype(x.dtype)

    def cpu(x, index, y, *, axis, missing):
        a = axis_of(axis, x.rank)
        steps = list(strides_of(x.shape))
        along, steps[a] = steps[a], 0
        dims = merged(index.shape, steps, strides_of(index.shape))
        *outer, (count, xs, _) = dims
        table, counters = odometer(outer)
        args = (as_carrier(x), index, as_carrier(y), count, xs, x.shape[a], along)
        fill = bits_read(missing, x.dtype)
        cuda = partial(gpu.gather_elements, x, index, y, dims, x.shape[a], along, fill)
        args = (*args, fill, len(outer), table, counters)
        return Launch(pick_elements, *args, units=y.size, cuda=cuda)

    def grad(g, operands, results, grads, *, axis, missing):
        x, index = operands
        return g.gather_elements_grad(grads[0], index, shape=x.shape, axis=axis), None


class one_hot(Op):
    """A new axis of size `classes`, with `on` at the index and `off` elsewhere.

    An index out of range gives `off` everywhere.
    """

    signature = (
        "one_hot(index: I, *, classes: dim, axis: int = -1, on: number = 1, off: number = 0,"
        " dtype: dtype = f32)"
    )
    source = "torch.nn.functional.one_hot, ONNX OneHot"
    outside = lost.classes
    grad = None

    def infer(index, *, classes, axis, on, off, dtype):
        a = axis_of(axis, index.rank + 1)
        if type(classes) is int and classes < 0:
            raise Mismatch(f"{classes} classes", "classes")
        check_value(on, dtype, "on")
        check_value(off, dtype, "off")
        return TensorType(dtype, (*index.shape[:a], classes, *index.shape[a:]))

    def oracle(index, *, classes, axis, on, off, dtype):
        at, exists = _existing(index.astype(np.int64), classes)
        a = axis % (index.ndim + 1)
        places = np.arange(classes).reshape((classes,) + (1,) * (index.ndim - a))
        hot = np.expand_dims(np.where(exists, at, -1), a) == places
        return np.where(hot, on, off)

    def cpu(index, y, *, classes, axis, on, off, dtype):
        before, n, after = around(y.shape, axis_of(axis, y.rank))
        kind = float if y.dtype.is_float else int
        grain = max(1, 32768 // max(n * after, 1))
        args = (index, y, n, after, kind(on), kind(off))
        cuda = partial(gpu.mark_indices, *args)
        return Launch(mark_indices, *args, units=before, grain=grain, cuda=cuda)


# --- shapes and oracles ---------------------------------------------------------------------------


def check_aligned(x: TensorType, index: TensorType, axis: int) -> None:
    """Raises Mismatch unless index has x's rank and fits into x along all axes but `axis`."""
    a = axis_of(axis, x.rank)
    if index.rank != x.rank:
        raise Mismatch(f"{index} has {index.rank} axes, {x} has {x.rank}", 1)
    for k, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)):
        if k != a and n != m and not (type(n) is int and type(m) is int and n < m):
            raise Mismatch(f"axis {k} of {index} is {n}, and that of {x} only {m}", 1)


def aligned(shape, within, axis: int) -> tuple:
    """What of an array of `shape` is reached, apart from along the axis."""
    a = axis % len(shape)
    return tuple(slice(None) if k == a else slice(n) for k, n in enumerate(within))


def _existing(index, size: int):
    """(indices from the front, moved into range; which ones exist)."""
    at = np.where(index < 0, index + size, index)
    exists = (at >= 0) & (at < size)
    return np.where(exists, at, 0), exists


def unread(x, missing=None):
    """What an oracle reads where there is nothing."""
    if missing is not None:
        return missing
    if x.dtype.kind not in "iub":
        return np.nan
    return np.iinfo(x.dtype).max if x.dtype.kind != "b" else True


def bits_read(missing: int | float | None, dtype: DType) -> int:
    return nowhere(dtype) if missing is None else bits_of(missing, dtype)


def _gather_rows(x: Arg, index: Arg, y: Arg, axis: int) -> Launch:
    outer, n, inner = around(x.shape, axis)
    nothing = nowhere(x.dtype)
    args = (as_carrier(x), index, as_carrier(y), index.size, n, inner, nothing)
    grain = max(1, 32768 // max(inner, 1))
    units = outer * index.size if inner else 0
    cuda = partial(gpu.gather_rows, x, index, y, outer, n, inner, nothing)
    return Launch(pick_rows, *args, units=units, grain=grain, cuda=cuda)


# --- kernels --------------------------------------------------------------------------------------


def pick_rows(x, index, y, places, n, inner, nothing, lo, hi):
    """Units are rows of y: each is `inner` elements."""
    outer = lo // places
    j = lo - outer * places
    for row in range(lo, hi):
        k = np.int64(index[j])
        k = k + n if k < 0 else k
        target = offset(y, row * inner)
        if inner == 1:  # a loop over one element takes longer than the element
            y[row] = x[outer * n + k] if k >= 0 and k < n else nothing
        elif k >= 0 and k < n:
            source = offset(x, (outer * n + k) * inner)
            for i in range(inner):
                target[i] = source[i]
        else:
            for i in range(inner):
                target[i] = nothing
        j += 1
        if j == places:
            j = 0
            outer += 1


def add_rows(gy, index, gx, places, n, inner, skipped, lo, hi):
    """Units are columns of gx: what belongs to one is added in the order of the places."""
    column = lo
    while column < hi:
        outer = column // inner
        count = min(hi, (outer + 1) * inner) - column
        within = column - outer * inner
        if inner == 1:
            target, source = offset(gx, outer * n), offset(gy, outer * places)
            for k in range(n):
                target[k] = 0.0
            for j in range(places):
                k = np.int64(index[j])
                k = k + n if k < 0 else k
                if k >= 0 and k < n and k != skipped:
                    target[k] += source[j]
        for k in range(0 if inner == 1 else n):
            target = offset(gx, (outer * n + k) * inner + within)
            for i in range(count):
                target[i] = 0.0
        for j in range(0 if inner == 1 else places):
            k = np.int64(index[j])
            k = k + n if k < 0 else k
            if k >= 0 and k < n and k != skipped:
                source = offset(gy, (outer * places + j) * inner + within)
                target = offset(gx, (outer * n + k) * inner + within)
                for i in range(count):
                    target[i] += source[i]
        column += count


def pick_elements(x, index, y, count, xs, n, along, nothing, rank, table, counters, lo, hi, lane):
    """Units are elements; the odometer walks x (without `axis`, whose stride is `along`) and y."""
    at = offset(counters, lane * counter_words(rank))
    row = lo // count
    column = lo - row * count
    set_odometer(at, row, rank, table)
    left = hi - lo
    while left > 0:
        m = min(count - column, left)
        source = offset(x, at[rank] + column * xs)
        wanted = offset(index, at[rank + 1] + column)
        target = offset(y, at[rank + 1] + column)
        for i in range(m):
            k = np.int64(wanted[i])
            k = k + n if k < 0 else k
            target[i] = source[k * along + i * xs] if k >= 0 and k < n else nothing
        left -= m
        column = 0
        advance_odometer(at, rank, table)


def mark_indices(index, y, n, after, on, off, lo, hi):
    """Units are what lies before the new axis."""
    for unit in range(lo, hi):
        for k in range(n):
            target = offset(y, (unit * n + k) * after)
            wanted = offset(index, unit * after)
            for j in range(after):
                at = np.int64(wanted[j])
                target[j] = on if at == k or at + n == k else off
