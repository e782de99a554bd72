"""Elements picked and written by index.

An index out of range reads NaN here and ends the run in ONNX, but where `missing` says otherwise.
"""

from __future__ import annotations

import numpy as np

from opstep.frontends.onnx.export_rules import RULES, rule, wide
from opstep.kernels.pick.reach import indexed_axes
from opstep.kernels.rules.axes import axis_of, volume
from opstep.runtime.ir.types import boolean, i64


@rule("gather")
def _gather(b, t, x, index, axis):
    return b.onnx("Gather", x, index, out=t, axis=axis)


@rule("embedding")
def _embedding(b, t, weight, index, padding_index):
    return b.onnx("Gather", weight, index, out=t, axis=0)


def _counted(b, index, size):
    """An index from the front and inside, and whether it was."""
    index = b.to(index, i64)
    most = b.reshape(b.vector([size]), shape=[])
    at = b.where(b.less(index, 0), b.add(index, most), index)
    inside = b.logical_and(b.greater_equal(at, 0), b.less(at, most))
    return b.where(inside, at, 0), inside


@rule("gather_elements")
def _gather_elements(b, t, x, index, axis, missing):
    if missing is None:
        return b.onnx("GatherElements", x, index, out=t, axis=axis)
    at, inside = _counted(b, index, x.shape[axis])
    return b.where(inside, b.onnx("GatherElements", x, at, out=t, axis=axis), missing)


@rule("gather_nd")
def _gather_nd(b, t, x, index, batch, missing):
    if missing is None:
        return b.onnx("GatherND", x, b.to(index, i64), out=t, batch_dims=batch)
    count = index.shape[-1]
    sizes = b.vector(x.shape[batch : batch + count])
    wide_index = b.to(index, i64)
    at = b.where(b.less(wide_index, 0), b.add(wide_index, sizes), wide_index)
    inside = b.logical_and(b.greater_equal(at, 0), b.less(at, sizes))
    exists = b.all(inside, axes=[-1])
    found = b.onnx("GatherND", x, b.where(inside, at, 0), out=t, batch_dims=batch)
    after = t.rank - len(exists.shape)
    return b.where(b.reshape(exists, shape=[*exists.shape, *[1] * after]), found, missing)


@rule("one_hot")
def _one_hot(b, t, index, classes, axis, on, off, dtype):
    at = axis_of(axis, t.rank)
    spread = b.unsqueeze(b.to(index, i64), axes=[at])
    number = b.reshape(b.iota(shape=[classes]), shape=[classes, *[1] * (t.rank - at - 1)])
    return b.where(b.equal(spread, number), b.value(on, t.dtype), b.value(off, t.dtype))


# --- writing ---


def _scatter(reduction):
    def write(b, t, x, index, source, axis):
        return _scattered(b, x, index, source, axis, reduction)

    return write


def _scattered(b, x, index, source, axis, reduction):
    """Only the part of source is used that index covers."""
    if source.shape != index.shape:
        axes = list(range(index.type.rank))
        source = b.slice(source, starts=[0] * len(axes), ends=index.shape, axes=axes)
    return b.onnx("ScatterElements", x, index, source, out=x.type, axis=axis, reduction=reduction)


RULES["scatter"] = _scatter(None)
RULES["scatter_add"] = _scatter("add")


@rule("gather_elements_grad")
@wide
def _gather_elements_grad(b, t, gy, index, shape, axis):
    zeros = b.zeros(shape=t.shape, dtype=t.dtype)
    return b.scatter_add(zeros, index, gy, axis=axis)


def _parts(reduction):
    def write(b, t, x, index, source, batch):
        index = b.to(index, i64)
        if batch:
            index = _with_batch(b, index, batch)
        return b.onnx("ScatterND", x, index, source, out=t, reduction=reduction)

    return write


def _with_batch(b, index, batch):
    """Indices that also say where in the leading axes they are."""
    shape = (*index.shape[:-1], 1)
    leading = [b.iota(shape=shape, axis=k) for k in range(batch)]
    return b.concat(*leading, index, axis=-1)


RULES["scatter_nd"] = _parts(None)
RULES["scatter_nd_add"] = _parts("add")


@rule("scatter_reduce")
@wide
def _scatter_reduce(b, t, x, index, source, reduction, axis, include_self):
    if reduction == "mean":
        total = b.scatter_reduce(
            x, index, source, reduction="add", axis=axis, include_self=include_self
        )
        one = b.ones(shape=index.shape, dtype=i64)
        first = b.full(shape=t.shape, value=int(include_self), dtype=i64)
        count = b.maximum(b.scatter_add(first, index, one, axis=axis), 1)
        if t.dtype.is_integer:
            return b.cast(b.floor_div(total, count), dtype=t.dtype)
        return b.div(total, b.cast(count, dtype=t.dtype))
    if not include_self:
        begins = b.broadcast(b.value(_neutral(reduction, t.dtype), t.dtype), shape=index.shape)
        x = b.scatter(x, index, begins, axis=axis)
    return _scattered(b, x, index, source, axis, reduction)


def _neutral(reduction, dtype):
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    if dtype.is_float:
        return -np.inf if reduction == "max" else np.inf
    limits = np.iinfo(dtype.numpy)
    return limits.min if reduction == "max" else limits.max


@rule("gather_grad")
@wide
def _gather_grad(b, t, gy, index, size, axis, ignored):
    at = axis_of(axis, t.rank)
    rank = index.type.rank
    after = gy.shape[at + rank :]
    flat = b.shaped(gy, (*gy.shape[:at], volume(index.shape), *after))
    front = b.transpose(flat, perm=[at, *(k for k in range(t.rank) if k != at)])
    rows = b.shaped(b.to(index, i64), (volume(index.shape), 1))
    places, inside = _counted(b, rows, size)
    if ignored is not None:
        skipped = b.value(ignored) if ignored >= 0 else b.add(b.vector([size]), ignored)
        inside = b.logical_and(inside, b.not_equal(places, skipped))
    kept = b.where(b.reshape(inside, shape=[inside.shape[0], *[1] * (t.rank - 1)]), front, 0)
    others = [d for k, d in enumerate(t.shape) if k != at]
    zeros = b.zeros(shape=[size, *others], dtype=t.dtype)
    total = b.scatter_nd_add(zeros, places, kept)
    return b.transpose(total, perm=[*range(1, at + 1), 0, *range(at + 1, t.rank)])


# --- several indices at once ---


def _places(b, x, indices, axes):
    """x with the indexed axes first, the indices side by side, and what comes behind each."""
    rank = x.type.rank
    indexed = indexed_axes(rank, len(indices), axes)
    others = [k for k in range(rank) if k not in indexed]
    shape = _broadcast(indices)
    columns = [b.unsqueeze(b.broadcast(b.to(i, i64), shape=shape), axes=[-1]) for i in indices]
    first, last = min(indexed), max(indexed)
    before = first if last - first == len(indexed) - 1 else 0
    return [*indexed, *others], b.concat(*columns, axis=-1), shape, before


def _broadcast(indices):
    from opstep.kernels.pointwise.broadcast import broadcast_shape

    return broadcast_shape(*(i.type for i in indices))


def _order(places, before, rank):
    """Axes of what was picked, the indices' first, as the op has them: some others before."""
    others = list(range(places, rank))
    return [*others[:before], *range(places), *others[before:]]


@rule("index")
def _index(b, t, x, *indices, axes, missing):
    perm, at, shape, before = _places(b, x, indices, axes)
    found = b.gather_nd(b.transpose(x, perm=perm), at, missing=missing)
    order = _order(len(shape), before, t.rank)
    return b.transpose(found, perm=order)


def _put(op):
    def write(b, t, x, source, *indices, axes):
        perm, at, shape, before = _places(b, x, indices, axes)
        moved = b.transpose(x, perm=perm)
        rest = moved.shape[len(indices) :]
        order = _order(len(shape), before, len(shape) + len(rest))
        selected = [[*shape, *rest][k] for k in order]
        spread = b.broadcast(source, shape=selected)
        first = b.transpose(spread, perm=[order.index(k) for k in range(len(order))])
        done = getattr(b, op)(moved, at, first)
        return b.transpose(done, perm=[perm.index(k) for k in range(t.rank)])

    return write


RULES["index_put"] = _put("scatter_nd")
RULES["index_put_add"] = wide(_put("scatter_nd_add"))


def nowhere_of(dtype):
    """What an integer or a bool is where nothing was."""
    return True if dtype is boolean else np.iinfo(dtype.numpy).max


@rule("masked_scatter")
def _masked_scatter(b, t, x, mask, source):
    nothing = float("nan") if t.dtype.is_float else nowhere_of(t.dtype)
    count = volume(source.shape)
    if count == 0:
        return b.where(mask, b.value(nothing, t.dtype), x)
    flat = b.shaped(b.to(mask, i64), (volume(mask.shape),))
    turn = b.sub(b.cumsum(flat, axis=0), 1)
    known = b.minimum(b.maximum(turn, 0), b.vector([count - 1]))
    taken = b.gather(b.shaped(source, (count,)), known)
    taken = b.where(b.less(turn, b.vector([count])), taken, b.value(nothing, t.dtype))
    return b.where(mask, b.shaped(taken, t.shape), x)


@rule("embedding_bag")
@wide
def _embedding_bag(b, t, weight, index, offsets, scale, mode, include_last_offset, padding_index):
    """Which index is in which bag, as a matrix that the rows are multiplied with, or masked by."""
    bags, n = t.shape[0], index.shape[0]
    at, used = _counted(b, index, weight.shape[0])
    if padding_index is not None:
        size = weight.shape[0]
        skipped = b.value(padding_index) if padding_index >= 0 else b.vector([size + padding_index])
        used = b.logical_and(used, b.not_equal(at, skipped))
    rows = b.gather(weight, at)
    begins = b.to(offsets, i64)
    if not include_last_offset:
        begins = b.concat(begins, b.vector([n]))
    first = b.reshape(b.slice(begins, starts=[0], ends=[bags]), shape=[bags, 1])
    last = b.reshape(b.slice(begins, starts=[1], ends=[bags + 1]), shape=[bags, 1])
    place = b.iota(shape=[1, n], axis=1)
    member = b.logical_and(b.greater_equal(place, first), b.less(place, last))
    member = b.logical_and(member, used)
    if scale is not None:
        rows = b.mul(rows, b.unsqueeze(scale, axes=[1]))
    if mode == "max":
        seen = b.where(b.unsqueeze(member, axes=[2]), rows, -np.inf)
        top = b.max(seen, axes=[1])
        return b.where(b.any(member, axes=[1], keepdims=True), top, 0)
    kept = b.where(b.unsqueeze(used, axes=[1]), rows, 0)
    total = b.matmul(b.cast(member, dtype=t.dtype), kept)
    if mode == "sum":
        return total
    count = b.maximum(b.sum(member, axes=[1], keepdims=True), 1)
    return b.div(total, b.cast(count, dtype=t.dtype))


@rule("searchsorted")
def _searchsorted(b, t, row, values, right):
    """How many elements of the row are smaller. A NaN is larger than all numbers."""
    n = row.shape[-1]
    each = b.unsqueeze(values, axes=[-1])
    if row.type.rank > 1:
        row = b.unsqueeze(row, axes=[-2])
    before = b.less_equal(row, each) if right else b.less(row, each)
    if row.dtype.is_float:
        number = b.logical_not(b.isnan(row))
        behind = b.isnan(each) if right else b.logical_and(b.isnan(each), number)
        before = b.logical_or(before, behind)
    return b.sum(before, axes=[-1]) if n != 0 else b.zeros(shape=t.shape, dtype=i64)
