"""Comparisons, logic, bitwise ops, tests for NaN and infinity."""

from __future__ import annotations

import math
import operator

import numpy as np

from opstep.kernels.pointwise.broadcast import broadcast_shape
from opstep.kernels.pointwise.elementwise import Binary, Relation, Unary
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import boolean


class equal(Relation):
    """Whether a = b; NaN equals nothing."""

    source = "torch.eq, ONNX Equal"
    scalar = operator.eq


class not_equal(Relation):
    """Whether a and b differ; NaN differs from everything, including itself."""

    source = "torch.ne"
    scalar = operator.ne


class less(Relation):
    """Whether a < b."""

    source = "torch.lt, ONNX Less"
    scalar = operator.lt


class less_equal(Relation):
    """Whether a <= b."""

    source = "torch.le, ONNX LessOrEqual"
    scalar = operator.le


class greater(Relation):
    """Whether a > b."""

    source = "torch.gt, ONNX Greater"
    scalar = operator.gt


class greater_equal(Relation):
    """Whether a >= b."""

    source = "torch.ge, ONNX GreaterOrEqual"
    scalar = operator.ge


class logical_and(Relation):
    """Whether both are true (not 0); NaN is true."""

    source = "torch.logical_and, ONNX And"

    def scalar(a, b):
        return (a != 0.0) & (b != 0.0)


class logical_or(Relation):
    """Whether at least one is true (not 0); NaN is true."""

    source = "torch.logical_or, ONNX Or"

    def scalar(a, b):
        return (a != 0.0) | (b != 0.0)


class logical_xor(Relation):
    """Whether exactly one is true (not 0); NaN is true."""

    source = "torch.logical_xor, ONNX Xor"

    def scalar(a, b):
        return (a != 0.0) != (b != 0.0)


class logical_not(Relation):
    """Whether x is false (0)."""

    signature = "logical_not(x: T)"
    source = "torch.logical_not, ONNX Not"

    def scalar(x):
        return x == 0.0


class isnan(Relation):
    """Whether x is NaN; false for every integer."""

    signature = "isnan(x: N)"
    source = "torch.isnan, ONNX IsNaN"

    def scalar(x):
        return x != x


class isinf(Relation):
    """Whether x is infinite, of either sign; false for every integer."""

    signature = "isinf(x: N)"
    source = "torch.isinf, ONNX IsInf"
    scalar = math.isinf


class isfinite(Relation):
    """Whether x is neither NaN nor infinite; true for every integer."""

    signature = "isfinite(x: N)"
    source = "torch.isfinite"
    scalar = math.isfinite


class _Bitwise(Binary):
    """Integers, or bools as bits."""

    grad = None
    parameters = "a: T, b: T"

    def infer(a, b):
        _bits(a, 0)
        return a.with_shape(broadcast_shape(a, b))


def _bits(t, at):
    if t.dtype.is_float:
        raise Mismatch(f"{t} has no bits to combine", at, hint="cast to an integer type first")


class bitwise_and(_Bitwise):
    """Bitwise and."""

    source = "torch.bitwise_and, ONNX BitwiseAnd"
    scalar = operator.and_


class bitwise_or(_Bitwise):
    """Bitwise or."""

    source = "torch.bitwise_or, ONNX BitwiseOr"
    scalar = operator.or_


class bitwise_xor(_Bitwise):
    """Bitwise exclusive or."""

    source = "torch.bitwise_xor, ONNX BitwiseXor"
    scalar = operator.xor


class bitwise_not(Unary):
    """Bitwise not; for bool, logical not."""

    signature = "bitwise_not(x: T)"
    source = "torch.bitwise_not, ONNX BitwiseNot"
    oracle = np.invert
    grad = None

    def infer(x):
        _bits(x, 0)
        return x

    scalar = operator.invert

    @staticmethod
    def turned(x):
        return x ^ 1

    @classmethod
    def function(cls, x):
        return (cls.turned if x.dtype is boolean else cls.scalar), []


class shift_left(Binary):
    """a shifted left by b bits, a * 2**b; 0 if b is negative or not less than the type's width."""

    signature = "shift_left(a: I, b: I)"
    formula = "a << b"
    source = "torch.bitwise_left_shift, ONNX BitShift (LEFT)"
    grad = None

    def oracle(a, b):
        bits = 8 * a.dtype.itemsize
        return np.where((b < 0) | (b >= bits), 0, a << np.clip(b, 0, bits - 1)).astype(a.dtype)

    def scalar(a, b):
        return a << b if 0 <= b < 64 else a ^ a  # 0, of a's type


class shift_right(Binary):
    """a shifted right by b bits, a // 2**b; 0 or -1 if b is negative or too large."""

    signature = "shift_right(a: I, b: I)"
    formula = "a >> b"
    source = "torch.bitwise_right_shift, ONNX BitShift (RIGHT)"
    grad = None

    def oracle(a, b):
        bits = 8 * a.dtype.itemsize
        far = (b < 0) | (b >= bits)
        return np.where(far, np.where(a < 0, -1, 0), a >> np.clip(b, 0, bits - 1)).astype(a.dtype)

    def scalar(a, b):
        return a >> b if 0 <= b < 64 else a >> 63
