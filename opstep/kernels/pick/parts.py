"""Parts of a tensor by the last axis of an index, which has a number for each leading axis: read by
gather_nd, written by scatter_nd and scatter_nd_add.

An index below 0 counts from the end; one that is out of range reads NaN (for integers, the largest
value), and what it writes is dropped. Several writes to one element are applied in row-major order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

import numpy as np

from opstep.kernels.move.copying import as_carrier, as_carriers, copy_all
from opstep.kernels.pick import cuda_index as gpu
from opstep.kernels.pick import cuda_segments
from opstep.kernels.pick.index import add_elements, bits_read, unread
from opstep.kernels.pick.scatter import replace_element
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.kernels.rules import indices as lost
from opstep.kernels.rules.axes import strides_of
from opstep.kernels.rules.literals import check_value
from opstep.kernels.rules.pitfalls import GATHER_ND
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.types import TensorType


class gather_nd(Op):
    """The slices of x selected by the last axis of `index`, which has one number for each leading
    axis of x.

    The first `batch` axes are shared by x and index and not indexed. An index out of range reads
    `missing`, if set.
    """

    traits = Traits(picks=True, moves=True)
    signature = "gather_nd(x: T, index: X, *, batch: int = 0, missing: number = none)"
    source = "ATen index.Tensor with stacked indices, ONNX GatherND"
    outside = lost.parts
    faults = GATHER_ND

    def infer(x, index, *, batch, missing):
        check_value(missing or 0, x.dtype, "missing")
        depth = indexed_axes(x, index, batch)
        return x.with_shape((*index.shape[:-1], *x.shape[batch + depth :]))

    def oracle(x, index, *, batch, missing):
        depth = index.shape[-1]
        sizes = np.array(x.shape[batch : batch + depth], np.int64)
        at = np.where(index < 0, index + sizes, index)
        exists = ((at >= 0) & (at < sizes)).all(-1)
        shape = (*index.shape[:-1], *x.shape[batch + depth :])
        y = np.full(shape, unread(x, missing), x.dtype)
        for place in np.ndindex(index.shape[:-1]):
            if exists[place]:
                y[place] = x[(*place[:batch], *at[place])]
        return y

    def cpu(x, index, y, *, batch, missing):
        depth, outer, places, inner = nd_sizes(x.shape, index.shape, batch)
        sizes = x.shape[batch : batch + depth]
        args = (as_carrier(x), index, as_carrier(y), places, inner, depth, sizes)
        grain = max(1, 32768 // max(inner, 1))
        return Launch(
            pick_parts, *args, bits_read(missing, x.dtype), units=outer * places, grain=grain
        )

    def cuda(x, index, y, *, batch, missing):
        indices, base, keys = nd_places(x.shape, index, batch)
        _, outer, places, inner = nd_sizes(x.shape, index.shape, batch)
        if not y.size or not indices or max(outer * places, inner) >= LIMIT:
            return gather_nd.cpu(x, index, y, batch=batch, missing=missing)
        located, at = gpu.located(indices, (outer, places), keys, outer * places, base=base)
        found = gpu.gather_rows(x, at, y, 1, keys, inner, bits_read(missing, x.dtype))
        return [*located, found]

    def grad(g, operands, results, grads, *, batch, missing):
        x, index = operands
        return g.scatter_nd_add(g.zeros_like(x), index, grads[0], batch=batch), None


class ScatterParts(Op):
    """Base: parts of y at the places that the last axis of index names meet the parts of source."""

    inplace = (0,)
    traits = Traits(overwrites=True)
    outside = lost.scattered_parts

    def infer(x, index, source, *, batch):
        depth = indexed_axes(x, index, batch)
        wanted = x.with_shape((*index.shape[:-1], *x.shape[batch + depth :]))
        if source.shape != wanted.shape:
            raise Mismatch(f"{source} does not fit: {index} puts {wanted} into {x}", 2)
        return x

    @classmethod
    def oracle(cls, x, index, source, *, batch):
        return _part_by_part(cls.combine, x, index, source, batch)

    @classmethod
    def cpu(cls, x, index, source, y, *, batch):
        return _scatter_parts(cls.combine, x, index, source, y, batch)

    @classmethod
    def cuda(cls, x, index, source, y, *, batch):
        return _scatter_parts(cls.combine, x, index, source, y, batch, on_gpu=True)


class scatter_nd(ScatterParts):
    """x with y[index[p]] = source[p] for each p; indices are those of `gather_nd`.

    The gradient with respect to source assumes that no two slices have the same index.
    """

    signature = "scatter_nd(x: T, index: X, source: T, *, batch: int = 0)"
    source = "torch.index_put, ONNX ScatterND"
    traits = Traits(moves=True)
    combine = staticmethod(replace_element)

    def grad(g, operands, results, grads, *, batch):
        x, index, source = operands
        gy = grads[0]
        g_source = g.gather_nd(gy, index, batch=batch, missing=0.0)
        zeros = g.full(shape=source.shape, value=0.0, dtype=gy.dtype)
        gx = g.scatter_nd(gy, index, zeros, batch=batch)
        return g.to_dtype(gx, x.dtype), None, g.to_dtype(g_source, source.dtype)


class scatter_nd_add(ScatterParts):
    """x with y[index[p]] += source[p] for each p; indices are those of `gather_nd`."""

    signature = "scatter_nd_add(x: N, index: X, source: N, *, batch: int = 0)"
    source = 'torch.index_put(accumulate=True), ONNX ScatterND(reduction="add")'
    combine = staticmethod(add_elements)

    def flops(x, index, source, *, batch):
        return source.size

    def grad(g, operands, results, grads, *, batch):
        x, index, source = operands
        g_source = g.gather_nd(grads[0], index, batch=batch, missing=0.0)
        return g.to_dtype(grads[0], x.dtype), None, g.to_dtype(g_source, source.dtype)


# --- shapes and oracles ---------------------------------------------------------------------------


def indexed_axes(x: TensorType, index: TensorType, batch: int) -> int:
    """The number of axes of x that an index of these ops names; raises Mismatch."""
    if index.rank == 0 or type(index.shape[-1]) is not int:
        raise Mismatch(f"the last axis of {index} must say how many axes of {x} are indexed", 1)
    depth = index.shape[-1]
    if not 0 <= batch < index.rank or x.shape[:batch] != index.shape[:batch]:
        raise Mismatch(f"{x} and {index} do not share {batch} axes", "batch")
    if batch + depth > x.rank:
        raise Mismatch(f"{index} names {depth} axes, and {x} has {x.rank - batch}", 1)
    return depth


def nd_sizes(x_shape, index_shape, batch: int) -> tuple[int, int, int, int]:
    """(axes named, batches, places in each, elements of a part)."""
    depth = index_shape[-1]
    return (
        depth,
        prod(x_shape[:batch]),
        prod(index_shape[batch:-1]),
        prod(x_shape[batch + depth :]),
    )


def nd_places(x_shape, index: Arg, batch: int) -> tuple[list[gpu.Index], tuple[int, ...], int]:
    """The places that the last axis of `index` names, as `cuda_index.located` takes them, of a box
    of (batches, places in each): indices, how far apart batches are, and how many keys there are.
    """
    depth, outer, places, _ = nd_sizes(x_shape, index.shape, batch)
    sizes = x_shape[batch : batch + depth]
    strides = (places * depth, depth)
    indices = [
        gpu.Index(index, n, along, strides, start)
        for start, (n, along) in enumerate(zip(sizes, strides_of(sizes), strict=True))
    ]
    return indices, (prod(sizes), 0), outer * prod(sizes)


def _part_by_part(combine: Callable, x, index, source, batch: int):
    y = x.copy()
    depth = index.shape[-1]
    sizes = np.array(x.shape[batch : batch + depth], np.int64)
    at = np.where(index < 0, index + sizes, index)
    exists = ((at >= 0) & (at < sizes)).all(-1)
    for place in np.ndindex(index.shape[:-1]):
        if exists[place]:
            into = (*place[:batch], *at[place])
            y[into] = combine(y[into], source[place])
    return y


# --- launches -------------------------------------------------------------------------------------


def _scatter_parts(
    combine: Callable, x: Arg, index: Arg, source: Arg, y: Arg, batch: int, on_gpu: bool = False
):
    depth, outer, places, inner = nd_sizes(x.shape, index.shape, batch)
    sizes = x.shape[batch : batch + depth]
    launches = copy_all(x, y)
    if not y.size or not source.size:
        return launches
    if combine is replace_element:
        source, y = as_carriers(source, y)
    if on_gpu and depth:
        indices, base, keys = nd_places(x.shape, index, batch)
        target = cuda_segments.Target(
            (outer, places),
            base,
            indices,
            keys,
            cuda_segments.walk((keys,), (inner,), (inner,)),
            cuda_segments.walk((inner,), (1,), (1,)),
            (places * inner, inner),
        )
        found = cuda_segments.combined(combine, source, y, target)
        if found is not None:
            return [*launches, *found]
    args = (source, index, y, places, inner, depth, sizes, prod(sizes))
    grain = max(16, 32768 // max(places, 1))
    return [*launches, Launch(scatter_parts(combine), *args, units=outer * inner, grain=grain)]


# --- kernels --------------------------------------------------------------------------------------


def flat_index(index, depth, sizes):
    """Row-major position of an index of `depth` numbers; -1 where it does not exist."""
    place = 0
    for d in range(depth):
        k = np.int64(index[d])
        k = k + sizes[d] if k < 0 else k
        if k < 0 or k >= sizes[d]:
            return -1
        place = place * sizes[d] + k
    return place


def pick_parts(x, index, y, places, inner, depth, sizes, nothing, lo, hi):
    """Units are the places of all batches."""
    total = 1
    for d in range(depth):
        total *= sizes[d]
    for p in range(lo, hi):
        k = flat_index(offset(index, p * depth), depth, sizes)
        target = offset(y, p * inner)
        if k >= 0:
            source = offset(x, (p // places * total + k) * inner)
            for i in range(inner):
                target[i] = source[i]
        else:
            for i in range(inner):
                target[i] = nothing


@cache
def scatter_parts(combine: Callable) -> Callable:
    def kernel(source, index, y, places, inner, depth, sizes, total, lo, hi):
        column = lo
        while column < hi:
            batch = column // inner
            count = min(hi, (batch + 1) * inner) - column
            within = column - batch * inner
            for j in range(places):
                p = batch * places + j
                k = flat_index(offset(index, p * depth), depth, sizes)
                if k >= 0:
                    part = offset(source, p * inner + within)
                    target = offset(y, (batch * total + k) * inner + within)
                    for i in range(count):
                        target[i] = combine(target[i], part[i])
            column += count

    kernel.__name__ = f"scatter_parts_{combine.__name__}"
    return kernel
