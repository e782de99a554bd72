"""Parts of a tensor by position: slice, select, diagonal, and replacing them."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from opstep.kernels.move.copying import Showing, copy_all, copy_block
from opstep.kernels.rules.axes import axes_of, axis_of, strides_of
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.strided import Places
from opstep.runtime.ir.types import TensorType

FAR = 2**31 - 1  # a bound from here on means "to the end", whatever the extent


class Cut(NamedTuple):
    """What a slice takes of one axis."""

    start: Dim
    count: Dim
    step: int


class slice(Showing):
    """x[start:end:step] along each of `axes` (by default the first ones), as in NumPy.

    Negative bounds count from the end, and bounds beyond the ends are clamped. Steps may be
    negative (then an end of -1 is the last element: write a large negative number to include the
    first). For a symbolic extent, bounds are assumed to be inside, and 2**31 - 1 or more means the
    end.
    """

    signature = "slice(x: T, *, starts: dims, ends: dims, axes: ints = none, steps: ints = none)"
    source = "ATen slice.Tensor, ONNX Slice"

    def infer(x, *, starts, ends, axes, steps):
        cuts = _cuts(x.shape, starts, ends, axes, steps)
        return x.with_shape(c.count for c in cuts)

    def oracle(x, *, starts, ends, axes, steps):
        return x[_indexing(x, starts, ends, axes, steps)]

    def shows(x, *, starts, ends, axes, steps):
        for axis, cut in enumerate(_cuts(x.shape, starts, ends, axes, steps)):
            x = x.along(axis, *cut)
        return (x,)

    def grad(g, operands, results, grads, *, starts, ends, axes, steps):
        x, gy = operands[0], grads[0]
        cuts = _cuts(x.shape, starts, ends, axes, steps)
        if all(c.step == 1 for c in cuts):
            after = [n - c.start - c.count for n, c in zip(x.shape, cuts, strict=True)]
            return (g.pad(gy, pads=[*(c.start for c in cuts), *after]),)
        zeros = g.zeros_like(x)
        return (g.slice_scatter(zeros, gy, starts=starts, ends=ends, axes=axes, steps=steps),)


class Replacing(Op):
    """Base of ops that give x with the elements that `part` shows replaced by those of `source`."""

    traits = Traits(moves=True, overwrites=True)
    inplace = (0,)
    part: type[Op]
    words = ""  # for what `part` shows

    @classmethod
    def infer(cls, x, source, **attrs):
        wanted = cls.part.infer(x, **attrs)
        if source.shape != wanted.shape:
            raise Mismatch(f"the {cls.words} is {wanted}, and what is to go there is {source}", 1)
        return x

    @classmethod
    def oracle(cls, x, source, **attrs):
        y = x.copy()
        part = cls.part.oracle(y, **attrs)  # a view
        part.flags.writeable = True
        part[...] = source
        return y

    @classmethod
    def cpu(cls, x, source, y, **attrs):
        (places,) = cls.part.shows(Places.whole(y.shape), **attrs)
        if places.shape != source.shape:
            given = f"{list(places.shape)}, not {list(source.shape)}"
            raise Mismatch(f"the bounds reach beyond the extents: {given}", 0)
        steps = [step for axis in places.axes for _, step in axis]
        inner = strides_of(source.shape)
        return copy_all(x, y) + copy_block(source, y, source.shape, inner, steps, 0, places.start)

    @classmethod
    def grad(cls, g, operands, results, grads, **attrs):
        x, source = operands
        gy = grads[0]
        zeros = g.to_dtype(g.zeros_like(source), gy.dtype)
        kept = getattr(g, cls.name)(gy, zeros, **attrs)
        taken = getattr(g, cls.part.name)(gy, **attrs)
        return g.to_dtype(kept, x.dtype), g.to_dtype(taken, source.dtype)


class slice_scatter(Replacing):
    """x with the elements of its `slice` replaced by those of `source`."""

    signature = (
        "slice_scatter(x: T, source: T, *, starts: dims, ends: dims, axes: ints = none,"
        " steps: ints = none)"
    )
    source = "torch.slice_scatter"
    part, words = slice, "slice"


class select(Showing):
    """x at one index of an axis, without that axis; a negative index counts from the end."""

    signature = "select(x: T, *, index: dim, axis: int = 0)"
    source = "torch.select, ONNX Gather with a scalar index"

    def infer(x, *, index, axis):
        a = axis_of(axis, x.rank)
        _from_front(index, x.shape[a])
        return x.with_shape((*x.shape[:a], *x.shape[a + 1 :]))

    def oracle(x, *, index, axis):
        return np.take(x, index, axis)

    def shows(x, *, index, axis):
        a = axis_of(axis, len(x.shape))
        return (x.along(a, _from_front(index, x.shape[a]), 1).without(a),)

    def grad(g, operands, results, grads, *, index, axis):
        x = operands[0]
        a = axis_of(axis, x.type.rank)
        at = _from_front(index, x.shape[a])
        pads = [0] * (2 * x.type.rank)
        pads[a], pads[x.type.rank + a] = at, x.shape[a] - at - 1
        return (g.pad(g.unsqueeze(grads[0], axes=[a]), pads=pads),)


class diagonal(Showing):
    """The diagonal of two axes, which are replaced by one at the end: where the second of two
    indices is the first plus `offset`.
    """

    signature = "diagonal(x: T, *, offset: int = 0, axes: ints = [0, 1])"
    source = "torch.diagonal"

    def infer(x, *, offset, axes):
        return x.with_shape(_diagonal_shape(x, offset, axes))

    def oracle(x, *, offset, axes):
        return np.diagonal(x, offset, *axes)

    def shows(x, *, offset, axes):
        a, b = _two_axes(len(x.shape), axes)
        return (x.diagonal(a, b, max(-offset, 0), max(offset, 0)),)

    def grad(g, operands, results, grads, *, offset, axes):
        zeros = g.zeros_like(operands[0])
        return (g.diagonal_scatter(zeros, grads[0], offset=offset, axes=axes),)


class diagonal_scatter(Replacing):
    """x with the elements of its `diagonal` replaced by those of `source`."""

    signature = "diagonal_scatter(x: T, source: T, *, offset: int = 0, axes: ints = [0, 1])"
    source = "torch.diagonal_scatter"
    part, words = diagonal, "diagonal"


# --- diagonals ------------------------------------------------------------------------------------


def _two_axes(rank: int, axes) -> tuple[int, int]:
    found = axes_of(axes, rank)
    if len(found) != 2:
        raise Mismatch(f"a diagonal is of two axes, not of {list(axes)}", "axes")
    return found[0], found[1]


def _diagonal_shape(x: TensorType, offset: int, axes) -> tuple[Dim, ...]:
    a, b = _two_axes(x.rank, axes)
    rows, columns = x.shape[a] - max(-offset, 0), x.shape[b] - max(offset, 0)
    rest = [n for k, n in enumerate(x.shape) if k not in (a, b)]
    if type(rows) is int and type(columns) is int:
        return *rest, max(0, min(rows, columns))
    if x.shape[a] != x.shape[b]:
        raise Mismatch(f"whether {x.shape[a]} or {x.shape[b]} is less shows only at run time", 0)
    return *rest, x.shape[a] - abs(offset)


# --- bounds ---------------------------------------------------------------------------------------


def _from_front(index: Dim, extent: Dim):
    """`index` counted from the front; raises Mismatch where it is known to lie outside."""
    if type(index) is int and type(extent) is int and not -extent <= index < extent:
        raise Mismatch(f"index {index} is outside of an axis of {extent}", "index")
    return index + extent if type(index) is int and index < 0 else index


def _cuts(shape: Sequence[Dim], starts, ends, axes, steps) -> list[Cut]:
    """One Cut an axis of x."""
    if axes is None:
        if len(starts) > len(shape):
            raise Mismatch(f"{len(starts)} starts for {len(shape)} axes", "starts")
        axes = tuple(range(len(starts)))
    axes = axes_of(axes, len(shape))
    steps = (1,) * len(axes) if steps is None else steps
    for name, given in (("starts", starts), ("ends", ends), ("steps", steps)):
        if len(given) != len(axes):
            raise Mismatch(f"{len(given)} {name} for {len(axes)} axes", name)
    cuts = [Cut(0, n, 1) for n in shape]
    for a, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            raise Mismatch("a step of 0", "steps")
        cuts[a] = _cut(shape[a], start, end, step)
    return cuts


def _cut(extent: Dim, start: Dim, end: Dim, step: int) -> Cut:
    if type(extent) is int and type(start) is int and type(end) is int:
        first, last, _ = builtins.slice(start, end, step).indices(extent)
        return Cut(first, len(range(first, last, step)), step)
    first, last = _bound(extent, start, step), _bound(extent, end, step)
    if step > 0:
        count = (last - first + step - 1) // step
    else:
        count = (first - last - step - 1) // -step
    if type(count) is int:
        count = max(count, 0)
    return Cut(first, count, step)


def _bound(extent: Dim, bound: Dim, step: int) -> Dim:
    """A bound counted from the front; against a symbolic extent it is taken to lie inside."""
    if type(bound) is not int:
        return bound
    if type(extent) is int:
        least, most = (0, extent) if step > 0 else (-1, extent - 1)
        return min(max(bound + extent if bound < 0 else bound, least), most)
    if bound >= FAR:
        return extent if step > 0 else extent - 1
    if bound <= -FAR:
        return 0 if step > 0 else -1
    return bound if bound >= 0 else extent + bound


def _indexing(x, starts, ends, axes, steps) -> tuple:
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(axes) if steps is None else steps
    wanted = [builtins.slice(None)] * x.ndim
    for a, start, end, step in zip(axes, starts, ends, steps, strict=True):
        wanted[a] = builtins.slice(start, end, step)
    return tuple(wanted)
