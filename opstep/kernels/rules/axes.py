"""Axes in shape rules: negative ones, missing ones, and what to say when they do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import TensorType


def axis_of(axis: int, rank: int, at: int | str = "axis") -> int:
    """`axis` counted from the front; raises Mismatch where there is no such axis."""
    if not -rank <= axis < rank:
        has = f"axes 0 to {rank - 1}" if rank else "no axes"
        raise Mismatch(f"axis {axis} is out of range: a tensor of rank {rank} has {has}", at)
    return axis % rank


def axes_of(axes: Sequence[int], rank: int, at: int | str = "axes") -> tuple[int, ...]:
    """Each axis counted from the front, in the order given; Mismatch where one comes twice."""
    found = tuple(axis_of(a, rank, at) for a in axes)
    if len(set(found)) != len(found):
        raise Mismatch(f"axes {list(axes)} name one axis twice", at)
    return found


def want_shape(t: TensorType, other: TensorType, at: int) -> None:
    """Raises Mismatch where a tensor has not the shape of another, such as a gradient that of the
    value that it is by.
    """
    if t.shape != other.shape:
        raise Mismatch(f"{t} has not the shape of {other}", at)


def volume(dims: Sequence[Dim]) -> Dim:
    """The product of dims, which may be symbolic; 1 for none."""
    n: Dim = 1
    for d in dims:
        n = n * d
    return n


def around(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """(elements before, extent, elements behind) of an axis."""
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides = [1] * len(shape)
    for k in range(len(shape) - 2, -1, -1):
        strides[k] = strides[k + 1] * shape[k + 1]
    return tuple(strides)
