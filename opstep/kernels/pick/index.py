"""Elements picked by index: gather, gather_elements, gather_nd, embedding, one_hot, and their
gradients.

An index below 0 counts from the end. An index out of range reads NaN (for integers, the largest
value), and is ignored in a gradient; memory outside a tensor is never touched.
"""

from __future__ import annotations

import numpy as np

from opstep.kernels.move.copying import filled
from opstep.kernels.pick.picking import Indexing, Pick, PickGrad, add_elements, always, put
from opstep.kernels.pick.reach import (
    Index,
    Reach,
    aligned,
    check_aligned,
    elements,
    existing,
    sliced,
    slices,
    written_at,
)
from opstep.kernels.rules import indices as lost
from opstep.kernels.rules.axes import around, axis_of
from opstep.kernels.rules.faults import GATHER, GATHER_ELEMENTS
from opstep.kernels.rules.literals import check_value
from opstep.runtime.device.launch import Arg
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import TensorType


class gather(Pick):
    """The slices of x along `axis` selected by `index`; the axis is replaced by index's axes."""

    signature = "gather(x: T, index: X, *, axis: int = 0)"
    source = "torch.index_select, ONNX Gather"
    faults = GATHER
    reach = staticmethod(slices)
    selection = staticmethod(sliced)

    def infer(x, index, *, axis):
        a = axis_of(axis, x.rank)
        return x.with_shape((*x.shape[:a], *index.shape, *x.shape[a + 1 :]))

    def grad(g, operands, results, grads, *, axis):
        x, index = operands
        a = axis_of(axis, x.type.rank)
        return g.gather_grad(grads[0], index, size=x.shape[a], axis=a), None


class embedding(Pick):
    """The rows of `weight` selected by `index`. The row `padding_index` gets no gradient.

    weight: [V, …]; index: any shape.
    """

    signature = "embedding(weight: T, index: X, *, padding_index: int = none)"
    source = "torch.nn.functional.embedding, ONNX Gather"
    faults = GATHER
    reach = staticmethod(slices)
    selection = staticmethod(sliced)

    def infer(weight, index, *, padding_index):
        axis_of(0, weight.rank, 0)
        _want_row(padding_index, weight.shape[0], "padding_index")
        return weight.with_shape((*index.shape, *weight.shape[1:]))

    def grad(g, operands, results, grads, *, padding_index):
        weight, index = operands
        size = weight.shape[0]
        return g.gather_grad(grads[0], index, size=size, ignored=padding_index), None


def _want_row(row: int | None, rows: Dim, attribute: str) -> None:
    """Raises Mismatch where there is no such row; below 0 they count from the end."""
    if row is not None and isinstance(rows, int) and not -rows <= row < rows:
        raise Mismatch(f"{attribute}={row} is none of {rows} rows", attribute)


class gather_grad(PickGrad):
    """The gradient of gather and embedding: the gradient of each slice, added where it was read.

    `size` is the extent of the axis; slices whose index is `ignored` are skipped.
    """

    signature = "gather_grad(gy: F, index: X, *, size: dim, axis: int = 0, ignored: int = none)"
    source = "ATen embedding_dense_backward"

    def outside(operands, shape, *, axis, **attrs):
        return np.asarray(not existing(sliced(shape, operands[1], axis)).all())

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
        if ignored is not None and size:
            ignored %= size
            index = np.where((index == ignored) | (index == ignored - size), size, index)
        return written_at(add_elements, gx, sliced(gx.shape, index, a), gy)

    @staticmethod
    def reach(shape, index, *, size, axis, ignored):
        return slices(shape, index, axis, -1 if ignored is None else ignored % max(shape[axis], 1))

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


class gather_elements(Pick):
    """y[i, j, k] = x[index[i, j, k], j, k] for axis 0, and so on: one element per index.

    index has x's rank, and is not larger than x along the other axes. An index out of range reads
    `missing`, if set.
    """

    signature = "gather_elements(x: T, index: X, *, axis: int = 0, missing: number = none)"
    source = "torch.gather, ONNX GatherElements"
    faults = GATHER_ELEMENTS
    reach = staticmethod(elements)
    selection = staticmethod(aligned)

    def infer(x, index, *, axis, missing):
        check_value(missing or 0, x.dtype, "missing")
        check_aligned(x, index, axis)
        return x.with_shape(index.shape)

    def grad(g, operands, results, grads, *, axis, missing):
        x, index = operands
        return g.gather_elements_grad(grads[0], index, shape=x.shape, axis=axis), None


class one_hot(Indexing):
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
        at = np.expand_dims(index.astype(np.int64), axis)
        behind = -1 - axis if axis < 0 else index.ndim - axis
        place = np.arange(classes).reshape(classes, *(1,) * behind)
        return np.where((at == place) | (at + classes == place), on, off)

    @staticmethod
    def launches(index, y, *, axis, on, off, on_gpu=False, **attrs):
        """The places along `axis` that the index names are written over."""
        before, n, after = around(y.shape, axis_of(axis, y.rank))
        of = Index(index, n, after, (after, 0, 1))
        reach = Reach((before, 1, after), (n * after, 0, 1), (of,))
        return [*filled(y, off), *put(always(_kept(on, y)), index, y, reach, on_gpu=on_gpu)]


def _kept(value: int | float, y: Arg) -> int | float:
    """A number as y's kernels write it."""
    if y.dtype.is_float:
        return float(value)
    return int(value != 0) if y.dtype.kind == "b" else int(value)
