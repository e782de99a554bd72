"""Elements written where a mask is true, one after the other."""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.move.copying import as_carriers
from opstep.kernels.pick.reach import read_at
from opstep.kernels.reduce import cuda_scan as gpu
from opstep.kernels.reduce.folds import total
from opstep.kernels.reduce.scans import running
from opstep.kernels.rules.axes import want_shape
from opstep.kernels.rules.literals import nowhere
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, Scratch, thread_a_unit
from opstep.runtime.ir.faults import Faults, Rule, all_elements
from opstep.runtime.ir.op import Op, Traits
from opstep.runtime.ir.types import boolean, f32, f64, i64

CHUNK = 1024  # elements of the mask that are counted together
_NONE = -(1 << 62)  # a place that there is not


class masked_scatter(Op):
    """x with its elements where mask is true replaced by those of source, in row-major order.

    mask has x's shape, source any. Where source has not enough elements, NaN is written (for
    integers, the largest value).
    """

    signature = "masked_scatter(x: T, mask: B, source: T)"
    source = "torch.masked_scatter"
    faults = Faults(
        all_elements,
        Rule(
            "more places than source has elements",
            lambda x, mask, source: (None, bool(mask.sum() > source.size), None),
        ),
    )
    traits = Traits(moves=True)

    def infer(x, mask, source):
        want_shape(mask, x, 1)
        return x

    def oracle(x, mask, source):
        before = np.cumsum(mask).reshape(mask.shape) - 1
        values = read_at(source, np.where(before < source.size, before, -1))
        return np.where(mask, values, x)

    def cpu(x, mask, source, y):
        chunks = -(-x.size // CHUNK)
        counts = Scratch(i64, chunks + 1)
        if not x.size:
            return []
        (x, source, y), nothing = _carried(x, source, y)
        args = (x, mask, source, counts, y)
        sizes = (x.size, source.size, nothing, CHUNK)
        grain = max(1, 32768 // CHUNK)
        return [
            Launch(count_true, mask, counts, x.size, CHUNK, units=chunks, grain=grain),
            Launch(add_counts, counts, chunks, units=1),
            Launch(put_where_true, *args, *sizes, units=chunks, grain=grain),
        ]

    def cuda(x, mask, source, y):
        if not x.size:
            return []
        before, whole = Scratch(i64, x.size), (1, x.size, 1)
        counted = gpu.scan(running(total(boolean), True), (mask,), (before,), whole, False)
        (x, source, y), nothing = _carried(x, source, y)
        args = (x, mask, source, before, y)
        sizes = (source.size, nothing)
        return [*counted, Launch(put_counted, *args, *sizes, units=x.size, cuda=thread_a_unit)]

    def grad(g, operands, results, grads):
        x, mask, source = operands
        (gy,) = grads
        flat = g.reshape(mask, shape=[-1]) if mask.type.rank != 1 else mask
        places = g.where(flat, g.cumsum(flat, axis=0, exclusive=True), _NONE)
        none = g.full(shape=[source.type.size], value=0.0, dtype=gy.dtype)
        by_source = g.index_put(none, g.reshape(gy, shape=flat.shape), places)
        by_source = g.reshape(by_source, shape=source.shape)
        return (
            g.to_dtype(g.where(mask, 0.0, gy), x.dtype),
            None,
            g.to_dtype(by_source, source.dtype),
        )


def _carried(*args: Arg) -> tuple[tuple[Arg, ...], int | float]:
    """The arguments as kernels move them, and an element for places after the source's last."""
    carried = as_carriers(*args)
    wide = carried[0].dtype in (f32, f64)
    return carried, math.nan if wide else nowhere(args[0].dtype)


# --- kernels: units are chunks of the mask --------------------------------------------------------


def count_true(mask, counts, size, chunk, lo, hi):
    for unit in range(lo, hi):
        here = offset(mask, unit * chunk)
        count = 0
        for i in range(min(chunk, size - unit * chunk)):
            count += 1 if here[i] != 0 else 0
        counts[unit] = count


def add_counts(counts, chunks, lo, hi):
    """Of each chunk, how many are true before it."""
    for _ in range(lo, hi):
        before = 0
        for k in range(chunks):
            count = counts[k]
            counts[k] = before
            before += count


def put_where_true(x, mask, source, counts, y, size, available, nothing, chunk, lo, hi):
    for unit in range(lo, hi):
        k = counts[unit]
        for i in range(unit * chunk, min((unit + 1) * chunk, size)):
            if mask[i] != 0:
                y[i] = source[k] if k < available else nothing
                k += 1
            else:
                y[i] = x[i]


def put_counted(x, mask, source, before, y, available, nothing, lo, hi):
    """A unit is an element; `before`: how many are true before it."""
    for i in range(lo, hi):
        if mask[i] == 0:
            y[i] = x[i]
        else:
            y[i] = source[before[i]] if before[i] < available else nothing
