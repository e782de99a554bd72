"""Intrinsics that mean the same to the CPU's compiler and to CUDA's: what numba makes one of.

Imported only where something is compiled.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types


def bits_to_float(_, bits):
    """uint32/int32 -> f32 and int64/uint64 -> f64 with the same bits."""
    wide = bits.bitwidth == 64
    result = types.float64 if wide else types.float32

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType() if wide else ir.FloatType())

    return result(bits), generate


def float_to_bits(_, number):
    """f32 -> int32 and f64 -> int64 with the same bits."""
    wide = number.bitwidth == 64
    result = types.int64 if wide else types.int32

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64 if wide else 32))

    return result(number), generate


def pick(context, condition, a, b):
    """(condition, a, b) -> a where the condition holds, else b; both are computed."""
    result = context.unify_types(a, b)

    def generate(target, builder, signature, args):
        values = [
            target.cast(builder, v, t, result)
            for v, t in zip(args[1:], signature.args[1:], strict=True)
        ]
        holds = target.cast(builder, args[0], signature.args[0], types.boolean)
        return builder.select(holds, *values)

    return result(condition, a, b), generate


def offset(_, pointer, i):
    """(pointer, i) -> pointer to element i."""

    def generate(context, builder, signature, args):
        return builder.gep(args[0], [args[1]])

    return pointer(pointer, types.int64), generate


def fma(_, a, b, c):
    """(a, b, c) of one float type -> a * b + c, rounded once."""

    def generate(context, builder, signature, args):
        return builder.fma(*args)

    return a(a, a, a), generate
