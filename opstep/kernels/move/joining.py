"""Joining and splitting tensors along an axis: concat, stack, split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

import numpy as np

from opstep.kernels.move.copying import Showing, copy_block
from opstep.kernels.pointwise.cuda_elementwise import elementwise
from opstep.kernels.pointwise.loops import looped
from opstep.kernels.rules.axes import around, axis_of
from opstep.runtime.device.launch import CARRIERS, Arg, Launch
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.types import TensorType


class Joining(Op):
    """Base: copies of the operands, one behind the other along an axis of the result."""

    traits = Traits(moves=True)

    def cpu(*args, axis):
        *xs, y = args
        before, extent, after = around(y.shape, axis_of(axis, y.rank))
        launches: list[Launch] = []
        start = 0
        for x in xs:
            run = x.size // max(before, 1)
            launches += copy_block(x, y, (before, run), (run, 1), (extent * after, 1), 0, start)
            start += run
        return launches


class concat(Joining):
    """Joins tensors along an existing axis; their other dims must be equal."""

    signature = "concat(xs: T*, *, axis: int = 0)"
    source = "torch.cat, numpy.concatenate, ONNX Concat"

    def infer(*xs, axis):
        first = xs[0]
        a = axis_of(axis, first.rank)
        extent: Dim = 0
        for k, x in enumerate(xs):
            if x.rank != first.rank:
                raise Mismatch(f"{x} has {x.rank} axes, the first operand {first.rank}", k)
            for j in range(x.rank):
                if j != a and x.shape[j] != first.shape[j]:
                    raise Mismatch(
                        f"{first} and {x} differ in axis {j}: {first.shape[j]} and {x.shape[j]}",
                        k,
                        hint=f"along axis {a} extents may differ, along others not",
                    )
            extent = extent + x.shape[a]
        return first.with_shape((*first.shape[:a], extent, *first.shape[a + 1 :]))

    def oracle(*xs, axis):
        return np.concatenate(xs, axis)

    def grad(g, operands, results, grads, *, axis):
        if len(operands) == 1:
            return (g.to_dtype(grads[0], operands[0].dtype),)
        a = axis_of(axis, results[0].type.rank)
        parts = g.split(grads[0], sizes=[x.shape[a] for x in operands], axis=a)
        return tuple(
            g.to_dtype(part, x.dtype) if x.dtype.is_float else None
            for part, x in zip(parts, operands, strict=True)
        )


class stack(Joining):
    """Joins tensors of the same shape along a new axis; `axis` is its position in the result."""

    signature = "stack(xs: T*, *, axis: int = 0)"
    source = "torch.stack"

    def infer(*xs, axis):
        first = xs[0]
        a = axis_of(axis, first.rank + 1)
        for k, x in enumerate(xs):
            if x.shape != first.shape:
                raise Mismatch(f"{first} and {x} differ in shape", k)
        return first.with_shape((*first.shape[:a], len(xs), *first.shape[a:]))

    def oracle(*xs, axis):
        return np.stack(xs, axis)

    def cpu(*args, axis):
        words = _pairs(args, axis)
        return looped(*words) if words else Joining.cpu(*args, axis=axis)

    def cuda(*args, axis):
        words = _pairs(args, axis)
        return (elementwise(*words) if words else None) or Joining.cpu(*args, axis=axis)

    def grad(g, operands, results, grads, *, axis):
        a = axis_of(axis, results[0].type.rank)
        if len(operands) == 1:
            parts = (grads[0],)
        else:
            parts = g.split(grads[0], sections=len(operands), axis=a)
        return tuple(
            g.to_dtype(g.reshape(part, shape=x.shape), x.dtype) if x.dtype.is_float else None
            for part, x in zip(parts, operands, strict=True)
        )


def _pairs(args: Sequence[Arg], axis: int) -> tuple | None:
    """Two tensors side by side: a function that makes a word of two elements, and what it goes
    over. Each line of memory is written once, not by two copies with gaps. None for others.
    """
    *xs, y = args
    width = y.dtype.itemsize
    plain = all(type(a) is Arg and a.stored is a.dtype is y.dtype for a in args)
    if len(xs) != 2 or axis_of(axis, y.rank) != y.rank - 1 or not plain or width > 4:
        return None
    a, b = (Arg(TensorType(CARRIERS[width], x.shape), x.slot) for x in xs)
    return (
        pair_of(8 * width),
        "stack",
        (a, b),
        Arg(TensorType(CARRIERS[2 * width], a.shape), y.slot),
    )


@cache
def pair_of(bits: int) -> Callable:
    """A word of two of so many bits."""
    mask = (1 << bits) - 1

    def pair(a, b):
        return (np.int64(b) << bits) | (np.int64(a) & mask)

    return pair


class split(Showing):
    """Splits x along an axis, one result per part: parts of `sizes` (one may be -1, the rest), or a
    number of `sections`.

    Sections are equal; if the axis does not divide evenly, the last one is smaller.
    """

    signature = "split(x: T, *, sizes: dims = none, sections: int = none, axis: int = 0)"
    source = "torch.split and torch.chunk (ATen split_with_sizes), ONNX Split"
    results = ("part",)

    def infer(x, *, sizes, sections, axis):
        a = axis_of(axis, x.rank)
        parts = _sizes(x.shape[a], sizes, sections)
        return tuple(x.with_shape((*x.shape[:a], n, *x.shape[a + 1 :])) for n in parts)

    def oracle(x, *, sizes, sections, axis):
        parts = _sizes(x.shape[axis], sizes, sections)
        ends = np.cumsum(parts)
        return tuple(
            np.take(x, np.arange(end - n, end), axis) for n, end in zip(parts, ends, strict=True)
        )

    def shows(x, *, sizes, sections, axis):
        a = axis_of(axis, len(x.shape))
        counts = _sizes(x.shape[a], sizes, sections)
        starts = accumulate(counts, initial=0)
        return tuple(x.along(a, first, n) for first, n in zip(starts, counts, strict=False))

    def grad(g, operands, results, grads, *, sizes, sections, axis):
        parts = [
            g.zeros_like(y) if gy is None else gy for gy, y in zip(grads, results, strict=True)
        ]
        return (g.concat(*parts, axis=axis),)


def _sizes(extent: Dim, sizes, sections) -> tuple[Dim, ...]:
    """Extents of the parts; raises Mismatch where they do not make up the axis."""
    if (sizes is None) == (sections is None):
        raise Mismatch("split wants sizes=[…] or sections=…, one of them")
    if sections is not None:
        return _sections(extent, sections)
    if not sizes:
        raise Mismatch("split into no parts", "sizes")
    rest = [n for n in sizes if type(n) is int and n < 0]
    if any(n != -1 for n in rest) or len(rest) > 1:
        raise Mismatch("sizes are 0 or more, and at most one is -1", "sizes")
    total: Dim = 0
    for n in sizes:
        total = total + (0 if n == -1 else n)
    left = extent - total
    if (not rest and left != 0) or (type(left) is int and left < 0):
        raise Mismatch(f"the sizes add up to {total}, and the axis is {extent}", "sizes")
    return tuple(left if n == -1 else n for n in sizes)


_MOST_SECTIONS = 65_536  # each is a result with a name


def _sections(extent: Dim, sections: int) -> tuple[Dim, ...]:
    if not 1 <= sections <= _MOST_SECTIONS:
        raise Mismatch(f"{sections} sections: 1 to {_MOST_SECTIONS} are possible", "sections")
    each = (extent + sections - 1) // sections
    last = extent - each * (sections - 1)
    if type(last) is int and last < 0:
        raise Mismatch(
            f"{extent} elements do not make {sections} sections of {each}",
            "sections",
            hint="give the sizes instead",
        )
    return (each,) * (sections - 1) + (last,)
