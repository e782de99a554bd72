"""Sorting along an axis: sort, argsort, top_k.

Sorts are stable: by digits on a GPU, and of long rows; short ones by insertion. NaN counts as the
largest value, as in PyTorch; equal elements keep their order. Indices are i64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opstep.kernels.pick import cuda_sort as gpu
from opstep.kernels.pick.cuda_select import best
from opstep.kernels.reduce.folds import high_key
from opstep.kernels.rules.axes import around, axis_of
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import i64

MANY = 64  # elements that are worth it to count digits
DIGITS = 256
FEW = 32  # so many best ones are always kept in order while a row is read; of a long row, more


class Ordered(Op):
    """Base: the first elements along an axis in order, and where they stood, or that alone."""

    @classmethod
    def cpu(cls, x, *found, axis, descending=False, largest=False, **attrs):
        return _sorted(x, *_both(found), axis_of(axis, x.rank), descending or largest)

    @classmethod
    def cuda(cls, x, *found, axis, descending=False, largest=False, **attrs):
        return _sorted_on_gpu(x, *_both(found), axis_of(axis, x.rank), descending or largest)

    def flops(x, **attrs):
        return x.size

    def grad(g, operands, results, grads, *, axis, **attrs):
        x, indices, gy = operands[0], results[1], grads[0]
        if gy is None:
            return (None,)
        return (g.gather_elements_grad(gy, indices, shape=x.shape, axis=axis),)


class sort(Ordered):
    """x in ascending (or descending) order along `axis`, and the original index of each element."""

    signature = "sort(x: T, *, axis: int = -1, descending: bool = false)"
    source = "torch.sort(stable=True)"
    results = ("values", "indices")

    def infer(x, *, axis, descending):
        axis_of(axis, x.rank)
        return x, x.with_dtype(i64)

    def oracle(x, *, axis, descending):
        order = _order(x, axis, descending)
        return np.take_along_axis(x, order, axis), order


class argsort(Ordered):
    """The indices that would sort x along `axis`."""

    signature = "argsort(x: T, *, axis: int = -1, descending: bool = false)"
    source = "torch.argsort(stable=True)"
    grad = None

    def infer(x, *, axis, descending):
        axis_of(axis, x.rank)
        return x.with_dtype(i64)

    def oracle(x, *, axis, descending):
        return _order(x, axis, descending)


class top_k(Ordered):
    """The k largest (or smallest) elements along `axis`, best first, and their indices.

    Among equal elements, those with lower indices are chosen.
    """

    signature = "top_k(x: T, *, k: dim, axis: int = -1, largest: bool = true, sorted: bool = true)"
    source = "torch.topk, ONNX TopK"
    results = ("values", "indices")

    def infer(x, *, k, axis, largest, sorted):
        a = axis_of(axis, x.rank)
        n: Dim = x.shape[a]
        if type(k) is int and (k < 0 or (type(n) is int and k > n)):
            raise Mismatch(f"k={k}, and axis {a} of {x} has {n} elements", "k")
        y = x.with_shape((*x.shape[:a], k, *x.shape[a + 1 :]))
        return y, y.with_dtype(i64)

    def oracle(x, *, k, axis, largest, sorted):
        order = np.take(_order(x, axis, largest), np.arange(k), axis)
        return np.take_along_axis(x, order, axis), order


def _both(found: Sequence[Arg]) -> tuple[Arg | None, Arg]:
    """(values, where they are wanted, and indices)."""
    return (found[0] if len(found) > 1 else None), found[-1]


def _order(x, axis: int, descending: bool):
    """The stable order. Descending: NaN first, equal elements still in the order they come in."""
    if not descending:
        return np.argsort(x, axis, kind="stable")
    back = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return x.shape[axis] - 1 - back


def _sorted(x: Arg, values: Arg | None, indices: Arg, axis: int, descending: bool) -> list[Launch]:
    before, n, inner = around(x.shape, axis)
    kept = around(indices.shape, axis)[1]
    units = before * inner if kept else 0
    if n < MANY or n >= 1 << 32 or kept <= max(FEW, min(n // 64, 16 * FEW)):
        into = values or Scratch(x.dtype, indices.size)
        args = (x, into, indices, n, kept, inner, descending)
        grain = max(1, 32768 // max(n * min(kept, 16), 1))
        return [Launch(select_best, *args, units=units, grain=grain)]
    lanes = units > 1
    words, counts = Scratch(i64, 2 * n, per_lane=lanes), Scratch(i64, 4 * DIGITS, per_lane=lanes)
    apart = (words.size, counts.size) if lanes else (0, 0)  # from one lane's memory to the next's
    args = (x, values or x, values is not None, indices, n, kept, inner, descending)
    rounds = -(-x.dtype.itemsize // 4)
    return [Launch(sort_by_digits, *args, rounds, words, counts, *apart, units=units, grain=1)]


def _sorted_on_gpu(x: Arg, values: Arg | None, indices: Arg, axis: int, descending: bool) -> list:
    n, kept, shape = x.shape[axis], indices.shape[axis], around(x.shape, axis)
    if indices.size == 0:
        return []
    if n >= 1 << 31:
        return _sorted(x, values, indices, axis, descending)
    found = values and kept < n and best(x, values, indices, shape, kept, descending)
    return found or gpu.sort(x, values, indices, shape, kept, descending)


# --- kernels: units are rows along the axis -------------------------------------------------------


def precedes(a, b, descending):
    """Whether a stands before b for certain; NaN is larger than anything else."""
    if descending:
        return a > b or (a != a and b == b)
    return a < b or (b != b and a == a)


def sort_by_digits(
    x, values, with_values, indices, n, kept, inner, descending, rounds, words, counts, apart,
    apart_counts, lo, hi, lane,
):  # fmt: skip
    """Words of 32 bits of a key, the lowest first, and a place are moved to where their digits
    belong, the lowest digit first; not where all have the same.
    """
    words = offset(words, lane * apart)
    counts = offset(counts, lane * apart_counts)
    for unit in range(lo, hi):
        outer = unit // inner
        source = offset(x, outer * n * inner + unit - outer * inner)
        at = 0
        for r in range(rounds):
            for c in range(4 * DIGITS):
                counts[c] = 0
            flip = (-1 if descending else 0) ^ (0x80000000 if r == rounds - 1 else 0)
            for i in range(n):
                place = words[at + i] & 0xFFFFFFFF if r > 0 else i
                key = np.int64(high_key(source[place * inner] + 0.0)) >> 32 * r  # -0.0 is 0.0
                key = (key ^ flip) & 0xFFFFFFFF
                words[at + i] = key << 32 | place
                for d in range(4):
                    counts[d * DIGITS + (key >> 8 * d & 255)] += 1
            for d in range(4):
                starts = offset(counts, d * DIGITS)
                shift = 32 + 8 * d
                if starts[words[at] >> shift & 255] == n:
                    continue
                total = 0
                for c in range(DIGITS):
                    count = starts[c]
                    starts[c] = total
                    total += count
                before = offset(words, at)
                at = n - at
                after = offset(words, at)
                for i in range(n):
                    word = before[i]
                    c = word >> shift & 255
                    after[starts[c]] = word
                    starts[c] += 1
        start = outer * kept * inner + unit - outer * inner
        for i in range(kept):
            place = words[at + i] & 0xFFFFFFFF
            indices[start + i * inner] = place
            if with_values:
                values[start + i * inner] = source[place * inner]


def select_best(x, values, indices, n, k, inner, descending, lo, hi):
    """Keeps the k best so far in order, in the results."""
    for unit in range(lo, hi):
        outer = unit // inner
        column = unit - outer * inner
        source = offset(x, outer * n * inner + column)
        best = offset(values, outer * k * inner + column)
        place = offset(indices, outer * k * inner + column)
        for i in range(n):
            key = source[i * inner]
            held = min(i, k)
            if held == k and not precedes(key, best[(k - 1) * inner], descending):
                continue
            j = held if held < k else k - 1
            while j > 0 and precedes(key, best[(j - 1) * inner], descending):
                best[j * inner] = best[(j - 1) * inner]
                place[j * inner] = place[(j - 1) * inner]
                j -= 1
            best[j * inner] = key
            place[j * inner] = i
