"""Other shapes for the same elements: nothing is moved, the result shares the operand's memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opstep.kernels.move.copying import copy_all
from opstep.kernels.rules.axes import axes_of, axis_of, volume
from opstep.runtime.ir.dims import Dim, Expr
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.types import TensorType


class Reinterpreting(Op):
    """Base of ops whose result is operand 0's memory; run on its own, such an op copies."""

    traits = Traits(moves=True, reinterprets=True)

    def cpu(x, y, **attrs):
        if x.size != y.size:
            raise Mismatch(f"{x.size} elements cannot be seen as {list(y.shape)}", 0)
        return copy_all(x, y)

    def grad(g, operands, results, grads, **attrs):
        return (g.reshape(grads[0], shape=operands[0].shape),)


class reshape(Reinterpreting):
    """The same elements, in the same order, in another shape; one dim may be -1 and is then
    inferred.
    """

    signature = "reshape(x: T, *, shape: dims)"
    source = "torch.reshape (ATen view), ONNX Reshape"

    def infer(x, *, shape):
        return x.with_shape(_filled_in(x, shape))

    def oracle(x, *, shape):
        return x.reshape(shape)


class stop_gradient(Reinterpreting):
    """x, which a gradient takes as a constant: none goes through it."""

    signature = "stop_gradient(x: T)"
    source = "torch.Tensor.detach, jax.lax.stop_gradient"
    traits = Traits(moves=True, reinterprets=True, constant=True)
    grad = None

    def infer(x):
        return x

    def oracle(x):
        return x


class flatten(Reinterpreting):
    """Merges the axes `start` to `end`, inclusive, into one. Rank 0 becomes rank 1."""

    signature = "flatten(x: T, *, start: int = 0, end: int = -1)"
    source = "torch.flatten"

    def infer(x, *, start, end):
        if x.rank == 0:
            axis_of(start, 1, "start")
            axis_of(end, 1, "end")
            return x.with_shape((1,))
        first, last = axis_of(start, x.rank, "start"), axis_of(end, x.rank, "end")
        if first > last:
            raise Mismatch(f"start={start} lies behind end={end} in {x}", "start")
        merged = volume(x.shape[first : last + 1])
        return x.with_shape((*x.shape[:first], merged, *x.shape[last + 1 :]))

    def oracle(x, *, start, end):
        first, last = start % max(x.ndim, 1), end % max(x.ndim, 1)
        return x.reshape(_flat(x, first, last))


class squeeze(Reinterpreting):
    """Removes `axes`, which must have extent 1; by default, all axes of extent 1."""

    signature = "squeeze(x: T, *, axes: ints = none)"
    source = "torch.squeeze, ONNX Squeeze"

    def infer(x, *, axes):
        if axes is None:
            unknown = next((d for d in x.shape if isinstance(d, Expr)), None)
            if unknown is not None:
                raise Mismatch(
                    f"whether {unknown} is 1 in {x} shows only at run time",
                    hint="name the axes to drop: squeeze(x, axes=[…])",
                )
            return x.with_shape(d for d in x.shape if d != 1)
        dropped = axes_of(axes, x.rank)
        for k in dropped:
            if x.shape[k] != 1:
                raise Mismatch(
                    f"axis {k} of {x} is {x.shape[k]}, and only an axis of 1 can go", "axes"
                )
        return x.with_shape(d for k, d in enumerate(x.shape) if k not in dropped)

    def oracle(x, *, axes):
        return np.squeeze(x, axes)


class unsqueeze(Reinterpreting):
    """Inserts axes of extent 1; `axes` are their positions in the result."""

    signature = "unsqueeze(x: T, *, axes: ints)"
    source = "torch.unsqueeze, ONNX Unsqueeze"

    def infer(x, *, axes):
        rank = x.rank + len(axes)
        added = axes_of(axes, rank)
        rest = iter(x.shape)
        return x.with_shape(1 if k in added else next(rest) for k in range(rank))

    def oracle(x, *, axes):
        return np.expand_dims(x, axes)


def _flat(x, first: int, last: int) -> tuple[int, ...]:
    return (*x.shape[:first], int(np.prod(x.shape[first : last + 1])), *x.shape[last + 1 :])


def _filled_in(x: TensorType, shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """`shape` with its -1 replaced; raises Mismatch where it cannot hold x's elements."""
    negative = [d for d in shape if type(d) is int and d < 0]
    if any(d != -1 for d in negative) or len(negative) > 1:
        raise Mismatch("a shape has dims of 0 and more, and at most one -1", "shape")
    known = volume([d for d in shape if d != -1])
    if not negative:
        if _differ(x.size, known):
            raise Mismatch(
                f"{x} has {x.size} elements and {_shape_text(shape)} has {known}",
                "shape",
                hint="one dim may be -1, which stands for what is left over",
            )
        return tuple(shape)
    if known == 0:
        raise Mismatch(
            f"what -1 stands for in {_shape_text(shape)} cannot be told, for a dim is 0", "shape"
        )
    if type(x.size) is int and type(known) is int and x.size % known:
        raise Mismatch(f"the {x.size} elements of {x} do not divide by {known}", "shape")
    return tuple(x.size // known if d == -1 else d for d in shape)


def _differ(a: Dim, b: Dim) -> bool:
    """Whether two sizes differ for sure; those with // or % in them show it only at run time."""
    return a != b and not any("//" in str(d) or "%" in str(d) for d in (a, b))


def _shape_text(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"
