"""What elementwise families share: bases of declarations.

A declaration gives `scalar`, which computes one element in plain Python and `math`. Loops are made
of it (`loops`, `cuda_elementwise`), and compiled for each element type. Without an `oracle` of its
own, an op means what NumPy's function of its name does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any

import numpy as np

from opstep.kernels.math.cuda_fast import faster
from opstep.kernels.pointwise.broadcast import broadcast_shape
from opstep.kernels.pointwise.cuda_elementwise import elementwise
from opstep.kernels.pointwise.loops import looped
from opstep.runtime.device.launch import Clamp
from opstep.runtime.ir.op import Op, Traits
from opstep.runtime.ir.types import DTYPES, boolean, f32, f64
from opstep.runtime.transforms.builder import Builder, Var

EVERY_TYPE = tuple(DTYPES)
INTEGERS = tuple(name for name, t in DTYPES.items() if t.is_integer)


def without_warnings(function: Callable) -> Callable:
    """A NumPy function that says nothing of NaNs and infinities."""

    @wraps(function)
    def oracle(*arrays, **attrs):
        with np.errstate(all="ignore"):
            return function(*arrays, **attrs)

    return oracle


class Elementwise(Op):
    """Operands that broadcast, and a function of one element of each: `scalar`, or for integers
    `integer`, where it is another one. Numeric attributes are its last arguments, in the order
    declared.
    """

    traits = Traits(as_stored=True)
    integer: Any = None
    parameters = ""  # of a signature that is not written out: NAME(…)
    alone: tuple[str, ...] = ()  # element types in which compilers make no vectors of `scalar`

    def __init_subclass__(cls, **kwargs):
        if "scalar" in cls.__dict__ and "signature" not in cls.__dict__:
            cls.signature = f"{cls.__name__}({cls.parameters})"
        super().__init_subclass__(**kwargs)
        if "signature" in cls.__dict__:
            oracle = cls.oracle if hasattr(cls, "oracle") else getattr(np, cls.name)
            cls.oracle = staticmethod(without_warnings(oracle))

    def infer(*operands, **attrs):
        return operands[0].with_shape(broadcast_shape(*operands))

    @classmethod
    def element(cls, *types, **attrs):
        return None if types[0].dtype.name in cls.alone else cls.function(*types, **attrs)

    @classmethod
    def function(cls, *operands, **attrs) -> tuple[Any, list]:
        """What computes an element for operands of these types, and the numbers that it takes."""
        plain = cls.integer is None or operands[0].dtype.is_float
        return cls.scalar if plain else cls.integer, list(attrs.values())

    def clamp(dtype, **attrs) -> Clamp | None:
        """The clamp that this op is, for elements of `dtype`; None if it is none."""
        return None

    @classmethod
    def cpu(cls, *args, **attrs):
        *operands, y = args
        f, numbers = cls.function(*operands, **attrs)
        clamp = cls.clamp(y.dtype, **attrs) if y.dtype in (f32, f64) else None
        return looped(f, cls.name, operands, y, numbers, clamp)

    @classmethod
    def cuda(cls, *args, **attrs):
        *operands, y = args
        f, numbers = cls.function(*operands, **attrs)
        f = faster(f, operands[0], y)
        return elementwise(f, cls.name, operands, y, numbers) or cls.cpu(*args, **attrs)

    def flops(*operands, **attrs):
        return operands[0].with_shape(broadcast_shape(*operands)).size


class Unary(Elementwise):
    """One operand, of floats unless a signature says otherwise."""

    inplace = (0,)
    parameters = "x: F"


class Binary(Elementwise):
    """Two operands that broadcast, of floats unless a signature says otherwise."""

    inplace = (0, 1)
    parameters = "a: F, b: F"


class Relation(Elementwise):
    """A bool for each element, or pair of elements: of a pair unless a signature says otherwise."""

    grad = None
    parameters = "a: T, b: T"

    def infer(*operands):
        return Elementwise.infer(*operands).with_dtype(boolean)


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


def derivatives(*parts: Callable[..., Var]) -> Callable:
    """The `grad` of an op with one result, from an expression for each operand: the gradient by it,
    of (g, *operands, result, the result's gradient), and of attributes by name.
    """

    def grad(g, operands, results, grads, **attrs):
        given = (g, *operands, results[0], grads[0])
        return tuple(
            onto(g, x, partial(part, *given, **attrs))
            for x, part in zip(operands, parts, strict=True)
        )

    return grad
