"""The base of collectives: their shapes, and what they are in a group of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opstep.kernels.move.copying import copy_all
from opstep.kernels.rules.axes import axis_of
from opstep.runtime.device.launch import Arg, Launch
from opstep.runtime.ir.faults import Faults
from opstep.runtime.ir.mesh import Group
from opstep.runtime.ir.op import Mismatch, Op, Traits
from opstep.runtime.ir.types import TensorType


class Collective(Op):
    """An op that the ranks of the group `over` compute together.

    - ``together(xs, **attrs)``: the meaning, in NumPy: the results of all ranks of a group, in
      their order, of what these have; that itself, where nothing is said.
    - ``joined(ranks, *operands, *results, **attrs)``: what one rank does on the CPU, on arrays over
      its memory. All ranks exchange messages in the same order.
    - ``joined_on_gpus(*operands, *results, **attrs)``: what each rank launches on its GPU, as
      `Op.cuda` gives it.
    """

    traits = Traits(collective=True)
    faults = Faults(lambda site: [None])  # what of x an element is of depends on the rank
    joined: Any
    joined_on_gpus: Any

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        for key in ("together", "joined", "joined_on_gpus"):
            if key in cls.__dict__ and not isinstance(cls.__dict__[key], staticmethod):
                setattr(cls, key, staticmethod(cls.__dict__[key]))

    @staticmethod
    def together(xs: list[np.ndarray], **attrs: Any) -> list[np.ndarray]:
        return xs

    @classmethod
    def oracle(cls, *operands: np.ndarray, **attrs: Any) -> np.ndarray:
        """Of a rank that is alone."""
        (result,) = cls.together(list(operands), **attrs)
        return result

    @staticmethod
    def cpu(x: Arg, y: Arg, **attrs: Any) -> list[Launch]:
        """Of a rank that is alone, as nothing is added or sent; others are `joined`."""
        return copy_all(x, y)


def split_dim(x: TensorType, axis: int, over: Group) -> TensorType:
    """x with one dim divided by the size of a group. Raises `Mismatch`."""
    a = axis_of(axis, x.rank)
    extent = x.shape[a]
    if isinstance(extent, int) and extent % over.size:
        raise Mismatch(
            f"the {extent} of axis {a} of {x} are not divided evenly by {over}",
            "axis" if axis else 0,
            f"pad it to {-(-extent // over.size) * over.size}, or choose another axis",
        )
    return x.with_shape((*x.shape[:a], extent // over.size, *x.shape[a + 1 :]))


def joined_dim(x: TensorType, axis: int, over: Group) -> TensorType:
    """x with one dim times the size of a group."""
    a = axis_of(axis, x.rank)
    return x.with_shape((*x.shape[:a], x.shape[a] * over.size, *x.shape[a + 1 :]))


def parts_along(x: np.ndarray, axis: int, count: int) -> Sequence[np.ndarray]:
    """Equal parts along an axis, in order."""
    return np.split(x, count, axis)
