"""What elementwise families share: bases of declarations, and the loops that run a scalar function.

A declaration gives `scalar`, which computes one element in plain Python and `math`. Loops are made
from it, once a function, and compiled for each element type.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.math.cuda_fast import faster
from opstep.kernels.pointwise.broadcast import broadcast_shape
from opstep.kernels.pointwise.cuda_elementwise import elementwise
from opstep.kernels.pointwise.loops import looped
from opstep.runtime.device.launch import Clamp
from opstep.runtime.ir.op import Op
from opstep.runtime.ir.types import DTYPES, boolean, f32, f64
from opstep.runtime.transforms.builder import Builder, Var

EVERY_TYPE = tuple(DTYPES)
INTEGERS = tuple(name for name, t in DTYPES.items() if t.is_integer)


class Unary(Op):
    """One operand. Numeric attributes reach `scalar` behind x, in the order declared."""

    inplace = (0,)
    as_stored = True
    alone: tuple[str, ...] = ()  # element types in which compilers make no vectors of `scalar`

    def infer(x, **attrs):
        return x

    @classmethod
    def element(cls, x, **attrs):
        return None if x.dtype.name in cls.alone else cls.function(x, **attrs)

    @classmethod
    def function(cls, x, **attrs) -> tuple[Callable, list]:
        """What computes an element of x's dtype, and the numbers that it takes behind x."""
        return cls.scalar, list(attrs.values())

    def clamp(dtype, **attrs) -> Clamp | None:
        """The clamp that this op is, for elements of `dtype`; None if it is none."""
        return None

    @classmethod
    def cpu(cls, x, y, **attrs):
        f, numbers = cls.function(x, **attrs)
        clamp = cls.clamp(x.dtype, **attrs) if x.dtype in (f32, f64) else None
        return looped(f, cls.name, (x,), y, numbers, clamp)

    @classmethod
    def cuda(cls, x, y, **attrs):
        f, numbers = cls.function(x, **attrs)
        return elementwise(faster(f, x, y), cls.name, (x,), y, numbers)

    def flops(x, **attrs):
        return x.size


class Binary(Op):
    """Two operands that broadcast."""

    inplace = (0, 1)
    as_stored = True
    alone: tuple[str, ...] = ()  # as in `Unary`

    def infer(a, b):
        return a.with_shape(broadcast_shape(a, b))

    @classmethod
    def element(cls, a, b):
        return None if a.dtype.name in cls.alone else (cls.function(a), [])

    @classmethod
    def function(cls, a) -> Callable:
        """What computes an element from two of a's dtype."""
        return cls.scalar

    @classmethod
    def cpu(cls, a, b, y):
        return looped(cls.function(a), cls.name, (a, b), y)

    @classmethod
    def cuda(cls, a, b, y):
        return elementwise(cls.function(a), cls.name, (a, b), y) or cls.cpu(a, b, y)

    def flops(a, b):
        return a.with_shape(broadcast_shape(a, b)).size


class Test(Unary):
    """One operand, a bool for each element."""

    inplace = ()
    grad = None

    def infer(x):
        return x.with_dtype(boolean)


class Relation(Binary):
    """Two operands that broadcast, a bool for each pair."""

    inplace = ()
    grad = None

    def infer(a, b):
        return a.with_shape(broadcast_shape(a, b)).with_dtype(boolean)


def same(x):
    return x


@cache
def guarded_loop(near: Callable, exact: Callable, reach: float, name: str) -> Callable:
    """A kernel (x, y, lo, hi) of `near` where |x| <= reach, of `exact` (which may not vectorise)
    beyond.
    """

    def kernel(x, y, lo, hi):
        for start in range(lo, hi, 256):
            stop = min(start + 256, hi)
            far = 0
            for i in range(start, stop):
                far |= np.int32(np.abs(x[i]) > reach)
            if far:
                for i in range(start, stop):
                    y[i] = exact(x[i]) if np.abs(x[i]) > reach else near(x[i])
            else:
                for i in range(start, stop):
                    y[i] = near(x[i])

    kernel.__name__ = name
    return kernel


def onto(g: Builder, x: Var | int | float, gradient: Callable[[], Var]) -> Var | None:
    """`gradient()` summed to x's shape; None, and nothing built, where x has no gradient."""
    if not isinstance(x, Var) or not x.dtype.is_float:
        return None
    return g.sum_to(gradient(), x)
