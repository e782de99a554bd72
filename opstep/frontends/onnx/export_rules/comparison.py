"""Comparisons, logic, bits."""

from __future__ import annotations

from opstep.frontends.onnx.export_rules import RULES, rule
from opstep.runtime.ir.types import boolean, i64, u8


def _relation(op_type):
    def write(b, t, x, y):
        if x.dtype is boolean and op_type != "Equal":
            x, y = b.cast(x, dtype=u8), b.cast(y, dtype=u8)
        return b.onnx(op_type, x, y, out=t)

    return write


for _name, _op_type in {
    "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
}.items():  # fmt: skip
    RULES[_name] = _relation(_op_type)


@rule("not_equal")
def _not_equal(b, t, x, y):
    if x.dtype is boolean:
        return b.onnx("Xor", x, y, out=t)
    return b.logical_not(b.equal(x, y))


def _logic(op_type):
    def write(b, t, *operands):
        return b.onnx(op_type, *(b.to(o, boolean) for o in operands), out=t)

    return write


def _bits(of_bools, of_integers):
    def write(b, t, *operands):
        op_type = of_bools if operands[0].dtype is boolean else of_integers
        return b.onnx(op_type, *operands, out=t)

    return write


for _name, _op_type in {"and": "And", "or": "Or", "xor": "Xor", "not": "Not"}.items():
    RULES[f"logical_{_name}"] = _logic(_op_type)
    RULES[f"bitwise_{_name}"] = _bits(_op_type, f"Bitwise{_op_type}")


def _of_floats(op_type):
    def write(b, t, x):
        if x.dtype.is_integer:
            return b.logical_not(b.equal(x, x))
        return b.onnx(op_type, x, out=t)

    return write


RULES.update(isnan=_of_floats("IsNaN"), isinf=_of_floats("IsInf"))


@rule("isfinite")
def _isfinite(b, t, x):
    if x.dtype.is_integer:
        return b.equal(x, x)
    return b.logical_not(b.logical_or(b.isnan(x), b.isinf(x)))


# BitShift is of unsigned integers, and what shifts by too much is not defined.


@rule("shift_left")
def _shift_left(b, t, x, by):
    bits = x.dtype.bits
    inside = b.logical_and(b.greater_equal(by, 0), b.less(by, bits))
    amount = b.cast(b.where(inside, by, 0), dtype=i64)
    one = b.cast(b.pow(b.value(2, i64), amount), dtype=x.dtype)
    return b.where(inside, b.mul(x, one), 0)


@rule("shift_right")
def _shift_right(b, t, x, by):
    bits = x.dtype.bits
    inside = b.logical_and(b.greater_equal(by, 0), b.less(by, bits))
    amount = b.where(inside, by, bits - 1)
    if bits < 64:
        divisor = b.pow(b.value(2, i64), b.cast(amount, dtype=i64))
        found = b.cast(b.floor_div(b.cast(x, dtype=i64), divisor), dtype=x.dtype)
    else:  # by one less than asked, and then by one, as 2**63 is no i64
        most = b.clip(b.sub(amount, 1), low=0)
        found = b.floor_div(x, b.pow(b.value(2, i64), most))
        found = b.where(b.greater(amount, 0), b.floor_div(found, 2), found)
    if x.dtype.kind == "u":
        return b.where(inside, found, 0)
    return b.where(inside, found, b.neg(b.cast(b.less(x, 0), dtype=x.dtype)))
