"""Elements in another order, or repeated: transpose, broadcast, flip, roll, tile, tril, triu."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from opstep.kernels.move.borders import padded
from opstep.kernels.move.copying import Showing, as_carrier, copy_block
from opstep.kernels.move.cuda_triangles import triangle
from opstep.kernels.pointwise.conversions import as_bits
from opstep.kernels.pointwise.cuda_elementwise import elementwise
from opstep.kernels.pointwise.elementwise import same
from opstep.kernels.rules.axes import axes_of, strides_of
from opstep.runtime.device.launch import Arg, Launch
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.strided import Places
from opstep.runtime.plan.viewing import moved


class transpose(Showing):
    """Permutes the axes: axis k of the result is axis perm[k] of x. Without `perm`, all are
    reversed.
    """

    signature = "transpose(x: T, *, perm: ints = none)"
    source = "torch.permute, torch.swapaxes, ONNX Transpose"

    def infer(x, *, perm):
        perm = _permutation(perm, x.rank)
        return x.with_shape(x.shape[p] for p in perm)

    def oracle(x, *, perm):
        return np.transpose(x, perm)

    def shows(x, *, perm):
        return (x.permuted(_permutation(perm, len(x.shape))),)

    def grad(g, operands, results, grads, *, perm):
        perm = _permutation(perm, operands[0].type.rank)
        return (g.transpose(grads[0], perm=[perm.index(k) for k in range(len(perm))]),)


def _permutation(perm, rank: int) -> tuple[int, ...]:
    if perm is None:
        return tuple(range(rank))[::-1]
    found = axes_of(perm, rank, "perm")
    if len(found) != rank:
        raise Mismatch(f"perm {list(perm)} must name all {rank} axes", "perm")
    return found


class broadcast(Showing):
    """x repeated along new leading axes and along axes of extent 1, to `shape`; -1 keeps a dim."""

    signature = "broadcast(x: T, *, shape: dims)"
    source = "torch.Tensor.expand, ONNX Expand"

    def infer(x, *, shape):
        new = len(shape) - x.rank
        if new < 0:
            raise Mismatch(f"{x} has more axes than {_dims(shape)}", "shape")
        wanted = list(shape)
        for k, d in enumerate(x.shape):
            if wanted[new + k] == -1:
                wanted[new + k] = d
            elif d not in (1, wanted[new + k]):
                raise Mismatch(
                    f"{x} does not broadcast to {_dims(shape)}: axis {k} is {d}, not 1",
                    "shape",
                    hint="axes are matched from the last one back",
                )
        if any(type(d) is int and d < 0 for d in wanted):
            raise Mismatch(f"{_dims(shape)}: -1 stands for a dim of x, and there is none", "shape")
        return x.with_shape(wanted)

    def oracle(x, *, shape):
        new = len(shape) - x.ndim
        return np.broadcast_to(x, [x.shape[k - new] if d == -1 else d for k, d in enumerate(shape)])

    def shows(x, *, shape):
        new = len(shape) - len(x.axes)
        axes = [((n, 0),) for n in shape[:new]]
        for n, own, axis in zip(shape[new:], x.shape, x.axes, strict=True):
            axes.append(axis if n in (-1, own) else ((n, 0),))
        return (Places(x.start, tuple(axes)),)

    def cuda(x, y, *, shape):
        source, target = as_bits(x, y)
        launch = elementwise(same, "broadcast", (source,), target)
        return launch or broadcast.cpu(x, y, shape=shape)

    def grad(g, operands, results, grads, *, shape):
        return (g.sum_to(grads[0], operands[0]),)


def _dims(shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


class flip(Showing):
    """Reverses the order along each of `axes`."""

    signature = "flip(x: T, *, axes: ints)"
    source = "torch.flip"

    def infer(x, *, axes):
        axes_of(axes, x.rank)
        return x

    def oracle(x, *, axes):
        return np.flip(x, axes)

    def shows(x, *, axes):
        for a in axes_of(axes, len(x.shape)):
            x = x.along(a, x.shape[a] - 1, x.shape[a], -1) if x.shape[a] > 1 else x
        return (x,)

    def grad(g, operands, results, grads, *, axes):
        return (g.flip(grads[0], axes=axes),)


class roll(Op):
    """Shifts x along each of `axes` by its `shifts`, around the end."""

    signature = "roll(x: T, *, shifts: ints, axes: ints)"
    source = "torch.roll"
    traits = Traits(moves=True)

    def infer(x, *, shifts, axes):
        axes_of(axes, x.rank)
        if len(shifts) != len(axes):
            raise Mismatch(f"{len(shifts)} shifts for {len(axes)} axes", "shifts")
        return x

    def oracle(x, *, shifts, axes):
        return np.roll(x, shifts, axes)

    def cpu(x, y, *, shifts, axes):
        by = [0] * x.rank
        for a, shift in zip(axes_of(axes, x.rank), shifts, strict=True):
            by[a] = shift % max(x.shape[a], 1)
        return padded(x, y, by, "wrap")

    def grad(g, operands, results, grads, *, shifts, axes):
        return (g.roll(grads[0], shifts=[-s for s in shifts], axes=axes),)


class tile(Showing):
    """x repeated `repeats` times along each axis; if there are more repeats than axes, leading axes
    are added.
    """

    signature = "tile(x: T, *, repeats: dims)"
    source = "torch.Tensor.repeat, ONNX Tile"

    def infer(x, *, repeats):
        if len(repeats) < x.rank:
            raise Mismatch(
                f"{len(repeats)} repeats for the {x.rank} axes of {x}",
                "repeats",
                hint="give one for each axis; 1 leaves an axis as it is",
            )
        if any(type(r) is int and r < 0 for r in repeats):
            raise Mismatch("a negative number of repeats", "repeats")
        shape = (1,) * (len(repeats) - x.rank) + x.shape
        return x.with_shape(r * d for r, d in zip(repeats, shape, strict=True))

    def oracle(x, *, repeats):
        return np.tile(x, repeats)

    def shows(x, *, repeats):
        axes = (((1, 0),),) * (len(repeats) - len(x.axes)) + x.axes
        again = zip(repeats, axes, strict=True)
        return (Places(x.start, tuple(((n, 0), *axis) for n, axis in again)),)

    def grad(g, operands, results, grads, *, repeats):
        x = operands[0]
        shape = (1,) * (len(repeats) - x.type.rank) + x.shape
        box = [n for pair in zip(repeats, shape, strict=True) for n in pair]
        apart = g.reshape(grads[0], shape=box)
        total = g.sum(apart, axes=list(range(0, len(box), 2)), keepdims=False)
        return (g.reshape(total, shape=x.shape),)


class Triangle(Op):
    """Base of tril and triu: matrices in the last two axes, the other triangle zero."""

    traits = Traits(moves=True)
    lower: bool

    def infer(x, *, diagonal):
        if x.rank < 2:
            raise Mismatch(f"{x} holds no matrices: it has fewer than two axes", 0)
        return x

    @classmethod
    def oracle(cls, x, *, diagonal):
        return (np.tril if cls.lower else np.triu)(x, _nearest(x.shape, diagonal))

    @classmethod
    def cpu(cls, x, y, *, diagonal):
        rows, columns = x.shape[-2:]
        diagonal, moved = _nearest(x.shape, diagonal), (as_carrier(x), as_carrier(y))
        return Launch(
            *(copy_triangle, *moved, rows, columns, diagonal, cls.lower),
            units=prod(x.shape[:-1]) if columns else 0,
            grain=max(1, 32768 // max(columns, 1)),
            cuda=lambda: triangle(*moved, rows, columns, diagonal + cls.lower, cls.lower),
        )

    @classmethod
    def grad(cls, g, operands, results, grads, *, diagonal):
        return (getattr(g, cls.name)(grads[0], diagonal=diagonal),)


class tril(Triangle):
    """The lower triangle: elements with column - row <= diagonal, zero elsewhere."""

    signature = "tril(x: T, *, diagonal: int = 0)"
    source = "torch.tril, ONNX Trilu(upper=0)"
    lower = True


class triu(Triangle):
    """The upper triangle: elements with column - row >= diagonal, zero elsewhere."""

    signature = "triu(x: T, *, diagonal: int = 0)"
    source = "torch.triu, ONNX Trilu(upper=1)"
    lower = False


def copy_triangle(x, y, rows, columns, diagonal, lower, lo, hi):
    """Units are rows of all matrices."""
    for unit in range(lo, hi):
        border = unit % rows + diagonal + lower  # the first column on the other side
        border = max(0, min(columns, border))
        start = unit * columns
        if lower:
            for i in range(start, start + border):
                y[i] = x[i]
            for i in range(start + border, start + columns):
                y[i] = 0
        else:
            for i in range(start, start + border):
                y[i] = 0
            for i in range(start + border, start + columns):
                y[i] = x[i]


def _nearest(shape: Sequence[int], diagonal: int) -> int:
    """The diagonal, or one just beyond the matrices for all that lie further: sums stay small."""
    rows, columns = shape[-2:]
    return max(-rows, min(columns, diagonal))


# --- several at once ------------------------------------------------------------------------------


def _moved(x: Arg, y: Arg, *, start: int, strides: Sequence[int]) -> list[Launch]:
    return copy_block(x, y, y.shape, strides, strides_of(y.shape), start)


moved.cpu = _moved
