"""What elementwise families share: bases of declarations, and the loops that run a scalar function.

A declaration gives `scalar`, which computes one element in plain Python and `math`. Loops are made
from it, once a function, and compiled for each element type.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.math.cuda_fast import faster
from opstep.kernels.pointwise.broadcast import broadcast_shape, collapse, locate
from opstep.kernels.pointwise.cuda_elementwise import elementwise
from opstep.runtime.device.launch import Clamp, Launch
from opstep.runtime.ir.op import Op
from opstep.runtime.ir.types import DTYPES, boolean, f32, f64
from opstep.runtime.transforms.builder import Builder, Var

EVERY_TYPE = tuple(DTYPES)
INTEGERS = tuple(name for name, t in DTYPES.items() if t.is_integer)


class Unary(Op):
    """One operand. Numeric attributes reach `scalar` behind x, in the order declared."""

    inplace = (0,)
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
        kernel = unary_loop(f, cls.name, len(numbers))
        clamp = cls.clamp(x.dtype, **attrs) if x.dtype in (f32, f64) else None
        return Launch(kernel, x, y, *numbers, units=y.size, each=True, clamp=clamp)

    @classmethod
    def cuda(cls, x, y, **attrs):
        f, numbers = cls.function(x, **attrs)
        return elementwise(faster(f, x, y), cls.name, (x,), y, numbers)

    def flops(x, **attrs):
        return x.size


class Binary(Op):
    """Two operands that broadcast."""

    inplace = (0, 1)
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
        return launch_binary(binary_loop(cls.function(a), cls.name), a, b, y)

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


def launch_binary(kernel: Callable, a, b, y) -> Launch:
    """A kernel of `binary_loop` over operands that broadcast to y."""
    layout = collapse(y.shape, (a.shape, b.shape))
    where = (layout.shape, *layout.strides, len(layout.shape))
    return Launch(kernel, a, b, y, *where, units=y.size, each=True)


@cache
def unary_loop(f: Callable, name: str, attributes: int = 0) -> Callable:
    """A kernel (x, y, *attributes, lo, hi) that applies `f` to each element."""

    def plain(x, y, lo, hi):
        for i in range(lo, hi):
            y[i] = f(x[i])

    def with_one(x, y, p, lo, hi):
        for i in range(lo, hi):
            y[i] = f(x[i], p)

    def with_two(x, y, p, q, lo, hi):
        for i in range(lo, hi):
            y[i] = f(x[i], p, q)

    kernel = (plain, with_one, with_two)[attributes]
    kernel.__name__ = name
    return kernel


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


@cache
def binary_loop(f: Callable, name: str) -> Callable:
    """A kernel over a `Layout`: rows of the last axis, each one of three loops of unit stride."""

    def kernel(a, b, y, sizes, a_strides, b_strides, rank, lo, hi):
        n = sizes[rank - 1]
        rows = sizes[rank - 2]
        a_step = a_strides[rank - 1]
        b_step = b_strides[rank - 1]
        i = lo
        while i < hi:
            row = i // n
            j = i - row * n
            plane = row // rows
            row -= plane * rows
            p = locate(plane, sizes, a_strides, rank - 2) + row * a_strides[rank - 2] + j * a_step
            q = locate(plane, sizes, b_strides, rank - 2) + row * b_strides[rank - 2] + j * b_step
            stop = min(hi, (plane + 1) * rows * n)
            while i < stop:
                count = min(n - j, stop - i)
                if b_step == 0:
                    one = b[q]
                    for k in range(count):
                        y[i + k] = f(a[p + k], one)
                elif a_step == 0:
                    one = a[p]
                    for k in range(count):
                        y[i + k] = f(one, b[q + k])
                else:
                    for k in range(count):
                        y[i + k] = f(a[p + k], b[q + k])
                p += a_strides[rank - 2] - j * a_step
                q += b_strides[rank - 2] - j * b_step
                i += count
                j = 0

    kernel.__name__ = name
    return kernel


def onto(g: Builder, x: Var | int | float, gradient: Callable[[], Var]) -> Var | None:
    """`gradient()` summed to x's shape; None, and nothing built, where x has no gradient."""
    if not isinstance(x, Var) or not x.dtype.is_float:
        return None
    return g.sum_to(gradient(), x)
