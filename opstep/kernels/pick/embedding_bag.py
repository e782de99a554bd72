"""Sums, means and maxima of bags of rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.pick.reach import existing, from_front, sliced
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, real
from opstep.runtime.device.launch import Grid, Launch
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import i64

_NONE = 1 << 62  # a bag that there is not
MODES = ("sum", "mean", "max")
THREADS = 256  # of a block
WARP = 32
AHEAD = 4  # rows that a thread reads together


class embedding_bag(Op):
    """The sum, mean or maximum of the rows of `weight` that each bag of indices selects.

    weight: [V, D]; index: [n], all bags one after the other; offsets: [bags], where each begins, in
    order, the first at 0; with `include_last_offset`, the end of the last stands after them.
    scale: [n], what the rows are multiplied with, only for sums. An empty bag gives 0. Indices
    below 0 count from the end; one that is no row, and `padding_index`, are left out. Equal largest
    elements share the gradient.
    """

    signature = (
        'embedding_bag(weight: F, index: X, offsets: X, scale: F?, *, mode: str = "mean",'
        " include_last_offset: bool = false, padding_index: int = none)"
    )
    choices = {"mode": MODES}
    source = "torch.nn.functional.embedding_bag (with scale as per_sample_weights)"

    def outside(operands, shape, **attrs):
        weight, index = operands[:2]
        return np.asarray(not existing(sliced(weight.shape, index)).all())

    def infer(weight, index, offsets, scale, *, mode, include_last_offset, padding_index):
        if mode not in MODES:
            raise Mismatch(f"no mode {mode!r}", "mode", hint=f"there are {', '.join(MODES)}")
        for at, (t, rank) in enumerate(((weight, 2), (index, 1), (offsets, 1))):
            if t.rank != rank:
                raise Mismatch(f"{t} has {t.rank} axes, not {rank}", at)
        if scale is not None and mode != "sum":
            raise Mismatch("only rows of a sum are scaled", 3, hint='write mode="sum"')
        if scale is not None and scale.shape != index.shape:
            raise Mismatch(f"{scale} has not a number for each of {index}", 3)
        return weight.with_shape((_bags(offsets, include_last_offset), weight.shape[1]))

    def oracle(weight, index, offsets, scale=None, *, mode, include_last_offset, padding_index):
        rows, bags = len(weight), len(offsets) - include_last_offset
        y = np.zeros((bags, weight.shape[1]))
        at = np.where(index < 0, index + rows, index)
        used = (at >= 0) & (at < rows)
        if padding_index is not None:
            used &= at != padding_index % max(rows, 1)
        for b in range(bags):
            end = offsets[b + 1] if b + 1 < len(offsets) else len(index)
            places = [k for k in range(max(0, offsets[b]), min(end, len(index))) if used[k]]
            if places:
                rows_of_bag = weight[at[places]] * (1 if scale is None else scale[places][:, None])
                y[b] = getattr(np, mode)(rows_of_bag, axis=0)
        return y

    def cpu(weight, index, offsets, scale, y, *, mode, include_last_offset, padding_index):
        rows, columns = weight.shape
        skipped = -1 if padding_index is None else padding_index % max(rows, 1)
        sizes = (index.size, offsets.size, rows, columns, MODES.index(mode), skipped)
        grain = max(1, 32768 // max(1, columns * (index.size // max(y.shape[0], 1) + 1)))
        args = (weight, index, offsets, scale or weight, int(scale is not None), y)
        return Launch(add_bags, *args, *sizes, units=y.shape[0], grain=grain)

    def cuda(weight, index, offsets, scale, y, *, mode, include_last_offset, padding_index):
        rows, columns = weight.shape
        skipped = -1 if padding_index is None else padding_index % max(rows, 1)
        if not y.size:
            return []
        wide = WARP
        while wide < min(columns, THREADS):
            wide *= 2
        below, bags = 1, y.shape[0]  # rows of a bag that are read side by side
        while 2 * below * wide <= THREADS and index.size > 4 * AHEAD * below * bags:
            below *= 2
        kernel = take_bags(mode, scale is not None, wide, below)
        args = (weight, index, offsets, scale or weight, y, index.size, offsets.size)
        args = (*args, bags, rows, columns, skipped)
        return Grid(kernel, *args, grid=-(-bags // (THREADS // (wide * below))), block=THREADS)

    def flops(weight, index, offsets, *rest, **attrs):
        return index.size * weight.shape[1]

    def grad(g, operands, results, grads, *, mode, include_last_offset, padding_index):
        weight, index, offsets, scale = operands
        (y,), (gy,) = results, grads
        starts = g.to_dtype(offsets, i64)
        bag = g.sub(g.searchsorted(starts, g.iota(shape=index.shape), right=True), 1)
        bag = g.where(g.less(bag, 0), _NONE, bag)
        used = g.cast(_used(g, index, weight.shape[0], padding_index), dtype=gy.dtype)
        share = g.mul(g.index(gy, bag, missing=0.0), used)
        if mode == "mean":
            share = g.div(share, _in_bag(g, used, bag, (y.shape[0], 1)))
        picked = g.index(weight, index, missing=0.0)
        if mode == "max":
            largest = g.equal(picked, g.index(y, bag, missing=0.0))
            largest = g.mul(g.cast(largest, dtype=gy.dtype), used)
            share = g.div(g.mul(share, largest), _in_bag(g, largest, bag, y.shape))
        by_scale = None
        if scale is not None:
            by_scale = g.to_dtype(g.sum(g.mul(share, picked), axes=[1]), scale.dtype)
            share = g.mul(share, g.unsqueeze(scale, axes=[1]))
        by_weight = g.gather_grad(share, index, size=weight.shape[0])
        return g.to_dtype(by_weight, weight.dtype), None, None, by_scale


def _bags(offsets, include_last_offset: bool) -> Dim:
    return offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]


def _used(g, index, rows: Dim, padding_index: int | None):
    """[n, 1]: whether an index counts."""
    size = g.extent(of=[rows], dtype=index.dtype)
    index = g.unsqueeze(index, axes=[1])
    at = g.where(g.less(index, 0), g.add(index, size), index)
    used = g.logical_and(g.greater_equal(at, 0), g.less(at, size))
    if padding_index is None:
        return used
    padding = padding_index if padding_index >= 0 else g.add(size, padding_index)
    return g.logical_and(used, g.not_equal(at, padding))


def _in_bag(g, counted, bag, shape):
    """For each index, the sum of `counted` over its bag, at least 1."""
    sums = g.index_put_add(g.full(shape=shape, value=0.0, dtype=counted.dtype), counted, bag)
    return g.maximum(g.index(sums, bag, missing=1.0), 1.0)


def add_bags(
    weight, index, offsets, scale, scaled, y, n, bags, rows, columns, mode, skipped, lo, hi
):  # fmt: skip
    """Units are bags. `mode`: its number in MODES."""
    for bag in range(lo, hi):
        first = np.int64(offsets[bag])
        last = np.int64(offsets[bag + 1]) if bag + 1 < bags else n
        target = offset(y, bag * columns)
        for e in range(columns):
            target[e] = 0.0
        count = 0
        for k in range(max(0, first), min(last, n)):
            row = from_front(index[k], rows)
            if row >= 0 and row < rows and row != skipped:
                source = offset(weight, row * columns)
                if mode == 2:
                    for e in range(columns):
                        old, new = target[e], source[e]
                        target[e] = new if count == 0 or new > old or new != new else old
                elif scaled:
                    factor = scale[k]
                    for e in range(columns):
                        target[e] += source[e] * factor
                else:
                    for e in range(columns):
                        target[e] += source[e]
                count += 1
        if mode == 1 and count > 1:
            for e in range(columns):
                target[e] /= count


@cache
def take_bags(mode: str, scaled: bool, wide: int, below: int) -> Callable:
    """`wide` threads side by side have a column of a bag each, `below` of them every so many of its
    rows, whose sums are added in f64, in their order; a block has the bags that it has threads for.
    """
    largest, together = mode == "max", THREADS // (wide * below)

    def meet(old, new):
        if largest:
            return new if new > old or new != new else old
        return old + new

    def take_bags(weight, index, offsets, scale, y, n, starts, bags, rows, columns, skipped):
        sums = cuda.shared.array(THREADS, np.float64)
        counts = cuda.shared.array(THREADS, np.int64)
        picked = cuda.local.array(AHEAD, np.int64)
        elements = cuda.local.array(AHEAD, real)
        lane, turn = cuda.threadIdx.x % wide, cuda.threadIdx.x // wide % below
        bag = np.int64(cuda.blockIdx.x) * together + cuda.threadIdx.x // (wide * below)
        first = last = np.int64(0)
        if bag < bags:
            first = max(np.int64(offsets[bag]), np.int64(0))
            last = min(np.int64(offsets[bag + 1]), n) if bag + 1 < starts else n
        for left in range(0, columns, wide):
            column = left + lane
            value = np.float64(0)
            count = np.int64(0)
            for k in range(first + turn, last, below * AHEAD):
                for j in range(AHEAD):
                    place = k + j * below
                    row = from_front(index[place] if place < last else rows, rows)
                    picked[j] = row if row < rows and row != skipped else -1
                for j in range(AHEAD):
                    elements[j] = real(0)
                    if picked[j] >= 0 and column < columns:
                        elements[j] = weight[picked[j] * columns + column]
                        if scaled:
                            elements[j] = elements[j] * scale[k + j * below]
                part, before = real(0), count
                for j in range(AHEAD):
                    if picked[j] >= 0:
                        part = meet(part, elements[j]) if count > before else elements[j]
                        count += 1
                if count > before:
                    value = meet(value, np.float64(part)) if before > 0 else np.float64(part)
            if below > 1:
                sums[cuda.threadIdx.x] = value
                counts[cuda.threadIdx.x] = count
                cuda.syncthreads()
                for other in range(1, below if turn == 0 else 1):
                    at = cuda.threadIdx.x + other * wide
                    if counts[at] > 0:
                        value = meet(value, sums[at]) if count > 0 else sums[at]
                        count += counts[at]
                cuda.syncthreads()
            if mode == "mean" and count > 1:
                value = value / np.float64(count)
            if turn == 0 and bag < bags and column < columns:
                y[bag * columns + column] = real(value)

    return take_bags
