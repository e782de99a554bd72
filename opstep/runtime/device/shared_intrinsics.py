"""Intrinsics: what makes one of its types and of what it emits, and those that mean the same to the
CPU's compiler and to CUDA's.

Imported only where something is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any

from llvmlite import ir
from numba import types

Emit = Callable[..., Any]
"""(context, builder, signature, args) -> the value, or None of what gives nothing."""


def emitting(intrinsic: Callable, typed: Callable, operands: int = 0) -> Callable[[Emit], Any]:
    """A decorator that makes an intrinsic of what emits its code. ``typed(*kinds)`` gives the
    signature for operands of these types: numba casts them to the types that it names. Where
    `typed` takes any number of them, `operands` says how many there are.
    """
    count = operands or len(signature(typed).parameters)

    def made(emit: Emit) -> Any:
        def generate(context, builder, signature, args):
            value = emit(context, builder, signature, args)
            return context.get_dummy_value() if value is None else value

        def apply(_, *kinds):
            return typed(*kinds), generate

        names = (f"a{k}" for k in range(count + 1))
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        apply.__signature__ = Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        return intrinsic(apply)

    return made


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
        return builder.select(*args)

    return result(types.boolean, result, result), generate


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
