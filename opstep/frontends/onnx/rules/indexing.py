"""Elements that indices name."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.frontends.onnx.body import Body, Var, axis_of
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.registry import rule
from opstep.frontends.onnx.values import known
from opstep.runtime.ir.types import i64


@rule("Gather", numbers=True)
def gather(b: Body, x, index, *, axis=0):
    x = b.tensor(x)
    axis = axis_of(axis, x.type.rank)
    if not isinstance(index, Var):
        return b.select(x, index=int(index), axis=axis)
    return b.gather(x, index, axis=axis)


@rule("GatherElements")
def gather_elements(b: Body, x, index, *, axis=0):
    return b.gather_elements(x, index, axis=axis_of(axis, x.type.rank))


@rule("GatherND")
def gather_nd(b: Body, x, index, *, batch_dims=0):
    return b.gather_nd(x, index, batch=batch_dims)


REDUCTIONS = {"mul": "mul", "max": "max", "min": "min"}


@rule("ScatterElements", "Scatter")
def scatter(b: Body, x, index, updates, *, axis=0, reduction="none"):
    axis = axis_of(axis, x.type.rank)
    if reduction == "none":
        return b.scatter(x, index, updates, axis=axis)
    if reduction == "add":
        return b.scatter_add(x, index, updates, axis=axis)
    return b.scatter_reduce(x, index, updates, reduction=REDUCTIONS[reduction], axis=axis)


@rule("ScatterND")
def scatter_nd(b: Body, x, index, updates, *, reduction="none"):
    if reduction == "none":
        return b.scatter_nd(x, index, updates)
    if reduction == "add":
        return b.scatter_nd_add(x, index, updates)
    places, source, flat = _flat(b, x, index, updates)
    found = b.scatter_reduce(flat, places, source, reduction=REDUCTIONS[reduction])
    return b.reshaped(found, list(x.shape))


def _flat(b: Body, x: Var, index: Var, updates: Var) -> tuple[Var, Var, Var]:
    """Places in x laid flat, by element, what goes there, and x."""
    depth: Any = index.shape[-1]
    shape: Any = x.shape
    if not all(isinstance(d, int) for d in (*shape, depth)):
        raise Untranslatable("a reduction into a tensor whose sizes are not known")
    total = b.to(b.select(index, index=0, axis=index.type.rank - 1), i64)
    total = b.where(b.less(total, 0), b.add(total, shape[0]), total)
    for k in range(1, depth):
        part = b.to(b.select(index, index=k, axis=index.type.rank - 1), i64)
        part = b.where(b.less(part, 0), b.add(part, shape[k]), part)
        total = b.add(b.mul(total, shape[k]), part)
    inner = 1
    for d in shape[depth:]:
        inner *= d
    rows = b.reshape(total, shape=[-1, 1])
    places = b.add(b.mul(rows, inner), b.iota(shape=[inner]))
    size = 1
    for d in updates.shape:
        size = size * d
    return b.reshape(places, shape=[size]), b.reshaped(updates, [size]), b.reshape(x, shape=[-1])


@rule("TensorScatter")
def tensor_scatter(b: Body, cache, update, start=None, *, axis=-2, mode="linear"):
    """Rows of a cache from a place on that each sample has, around the end if it is circular."""
    rank = cache.type.rank
    axis = axis_of(axis, rank)
    shape = [1] * rank
    shape[axis] = update.shape[axis]
    places = b.reshaped(b.iota(shape=[update.shape[axis]]), shape)
    if start is not None:
        places = b.add(places, b.reshaped(b.to(start, i64), [start.shape[0], *[1] * (rank - 1)]))
    if mode == "circular":
        places = b.rem(places, b.size(cache.shape[axis], i64))
    return b.scatter(cache, b.broadcasted(places, list(update.shape)), update, axis=axis)


@rule("Compress", known=[1])
def compress(b: Body, x, condition, *, axis=None):
    """Which slices are kept is known at import: the size of the result depends on it."""
    places = known(np.flatnonzero(condition), name=f"{b.prefix}_kept")
    if axis is None:
        x, axis = b.reshape(x, shape=[-1]), 0
    return b.gather(x, b.constant(places), axis=axis_of(axis, x.type.rank))


@rule("NonZero", known=[0])
def nonzero(b: Body, x):
    """Its size depends on the elements, which are known at import."""
    return known(np.array(np.nonzero(x)))
