"""What Python cannot say to numba.cuda: bit casts, pointer arithmetic, atomics, shuffles.

Imported only where something is compiled; kernels name the `Intrinsic` objects of `device.builtin`
and `cuda.compiling.names`.
"""

# numba.cuda ships no types, and type checkers find an older one inside numba.
# pyright: reportAttributeAccessIssue=none

from __future__ import annotations

from functools import partial

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

from opstep.runtime.device import shared_intrinsics as shared
from opstep.runtime.device.cuda.compiling.elements import (
    load,
    store,
    through_half,
)

__all__ = ["load", "store"]

_WHOLE = ir.IntType(32)


bits_to_float = partial(intrinsic, shared.bits_to_float)
float_to_bits = partial(intrinsic, shared.float_to_bits)
pick = partial(intrinsic, shared.pick)
fma = partial(intrinsic, shared.fma)
offset = partial(intrinsic, shared.offset)


def _atomic(operation):
    def make():
        @intrinsic
        def apply(_, pointer, i, value):
            element = pointer.dtype

            def generate(context, builder, signature, args):
                place = builder.gep(args[0], [args[1]])
                given = context.cast(builder, args[2], value, element)
                return builder.atomic_rmw(operation, place, given, "seq_cst")

            return element(pointer, types.int64, value), generate

        return apply

    return make


atomic_add = _atomic("add")  # integers; each gives the value before
atomic_swap = _atomic("xchg")


def _shuffle(name: str, clamp: int):
    """Between the lanes of a warp, for numbers of 4 and 8 bytes."""

    def make():
        kind = ir.FunctionType(_WHOLE, [_WHOLE, _WHOLE])
        text = f"shfl.sync.{name}.b32 $0, $1, $2, {clamp}, 0xffffffff;"

        @intrinsic
        def shuffle(_, value, other):
            wide = value.bitwidth == 64

            def generate(context, builder, signature, args):
                asm = ir.InlineAsm(kind, text, "=r,r,r", side_effect=True)
                lane = context.cast(builder, args[1], other, types.int32)
                own = args[0].type
                if not wide:
                    moved = builder.call(asm, [builder.bitcast(args[0], _WHOLE), lane])
                    return builder.bitcast(moved, own)
                bits = builder.bitcast(args[0], ir.IntType(64))
                low = builder.trunc(bits, _WHOLE)
                high = builder.trunc(builder.lshr(bits, bits.type(32)), _WHOLE)
                low, high = (builder.call(asm, [part, lane]) for part in (low, high))
                high = builder.shl(builder.zext(high, bits.type), bits.type(32))
                return builder.bitcast(builder.or_(builder.zext(low, bits.type), high), own)

            return value(value, other), generate

        return shuffle

    return make


shuffle_xor = _shuffle("bfly", 31)
shuffle_down = _shuffle("down", 31)
shuffle_up = _shuffle("up", 0)
shuffle_from = _shuffle("idx", 31)


def rank_among(bits: int):
    """A digit -> (lanes before this one that have the same, the last one that has it)."""
    lines = ["{ .reg .pred p; .reg .b32 own, same;", "mov.b32 same, -1;"]
    for k in range(bits):
        lines.append(f"and.b32 own, $2, {1 << k}; setp.ne.b32 p, own, 0;")
        lines.append("vote.sync.ballot.b32 own, p, -1; @!p not.b32 own, own;")
        lines.append("and.b32 same, same, own;")
    lines += ["bfind.u32 $1, same;", "mov.u32 own, %lanemask_lt;", "and.b32 own, own, same;"]
    lines += ["popc.b32 $0, own; }"]
    kind = ir.FunctionType(ir.LiteralStructType([_WHOLE] * 2), [_WHOLE])
    asm = ir.InlineAsm(kind, " ".join(lines), "=r,=r,r", side_effect=True)

    @intrinsic
    def rank(_, digit):
        def generate(context, builder, signature, args):
            made = builder.call(asm, [context.cast(builder, args[0], digit, types.int32)])
            found = [builder.zext(builder.extract_value(made, k), ir.IntType(64)) for k in (0, 1)]
            return cgutils.pack_array(builder, found)

        return types.UniTuple(types.int64, 2)(digit), generate

    return rank


def digit_of():
    """(an integer, shift, flip) -> its 8 bits from bit `shift` on, xor `flip`."""

    @intrinsic
    def digit(_, key, shift, flip):
        own = types.int64 if key.bitwidth == 64 else types.int32

        def generate(context, builder, signature, args):
            kinds = zip(args, signature.args, (own, own, types.int32), strict=True)
            bits, by, flipped = (context.cast(builder, v, t, to) for v, t, to in kinds)
            moved = builder.lshr(bits, by)
            moved = builder.trunc(moved, _WHOLE) if own is types.int64 else moved
            found = builder.xor(builder.and_(moved, _WHOLE(255)), flipped)
            return builder.zext(found, ir.IntType(64))

        return types.int64(key, shift, flip), generate

    return digit


def global_time():
    """() -> ns."""
    kind = ir.FunctionType(ir.IntType(64), [])
    asm = ir.InlineAsm(kind, "mov.u64 $0, %globaltimer;", "=l", side_effect=True)

    @intrinsic
    def read(_):
        return types.int64(), lambda context, builder, signature, args: builder.call(asm, [])

    return read


def _division32(operation: str):
    def make():
        @intrinsic
        def divide(_, a, b):
            def generate(context, builder, signature, args):
                parts = [
                    builder.trunc(context.cast(builder, v, t, types.int64), _WHOLE)
                    for v, t in zip(args, signature.args, strict=True)
                ]
                return builder.zext(getattr(builder, operation)(*parts), ir.IntType(64))

            return types.int64(a, b), generate

        return divide

    return make


div32 = _division32("udiv")
mod32 = _division32("urem")


def pointer_to():
    """A shared or local array -> a pointer to its first element."""

    @intrinsic
    def point(_, array):
        def generate(context, builder, signature, args):
            return context.make_array(array)(context, builder, args[0]).data

        return types.CPointer(array.dtype)(array), generate

    return point


def _extreme(name: str):
    def make():
        @intrinsic
        def choose(_, a, b):
            result = types.float64 if types.float64 in (a, b) else types.float32
            own = f"__nv_{name}" if result is types.float64 else f"__nv_{name}f"

            def generate(context, builder, signature, args):
                given = [
                    context.cast(builder, v, t, result)
                    for v, t in zip(args, signature.args, strict=True)
                ]
                kind = ir.FunctionType(given[0].type, [v.type for v in given])
                function = cgutils.get_or_insert_function(builder.module, kind, own)
                return builder.call(function, given)

            return result(a, b), generate

        return choose

    return make


fmin = _extreme("fmin")
fmax = _extreme("fmax")


def _outermost(name: str, wins: str):
    """The extreme of two numbers, NaN where there is one; one instruction for f32."""

    def make():
        @intrinsic
        def choose(_, a, b):
            result = types.float64 if types.float64 in (a, b) else types.float32

            def generate(context, builder, signature, args):
                x, y = (
                    context.cast(builder, v, t, result)
                    for v, t in zip(args, signature.args, strict=True)
                )
                if result is types.float32:
                    kind = ir.FunctionType(x.type, [x.type, x.type])
                    text = f"{name}.NaN.f32 $0, $1, $2;"
                    return builder.call(ir.InlineAsm(kind, text, "=f,f,f", False), [x, y])
                first = builder.or_(
                    builder.fcmp_ordered(wins, x, y), builder.fcmp_unordered("uno", x, x)
                )
                return builder.select(first, x, y)

            return result(a, b), generate

        return choose

    return make


min_nan = _outermost("min", "<")
max_nan = _outermost("max", ">")


def saturated_product():
    """Of two f32, held between 0 and 1; NaN becomes 0."""
    kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), ir.FloatType()])
    product = ir.InlineAsm(kind, "mul.sat.f32 $0, $1, $2;", "=f,f,f", side_effect=False)

    @intrinsic
    def multiply(_, a, b):
        def generate(context, builder, signature, args):
            given = [
                context.cast(builder, v, t, types.float32)
                for v, t in zip(args, signature.args, strict=True)
            ]
            return builder.call(product, given)

        return types.float32(a, b), generate

    return multiply


def _approximate(instruction: str):
    """A function of one f32 that the GPU has."""
    kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()])
    asm = ir.InlineAsm(kind, f"{instruction}.approx.ftz.f32 $0, $1;", "=f,f", side_effect=False)

    def make():
        @intrinsic
        def apply(_, x):
            def generate(context, builder, signature, args):
                given = context.cast(builder, args[0], signature.args[0], types.float32)
                return builder.call(asm, [given])

            return types.float32(x), generate

        return apply

    return make


exp2_approx = _approximate("ex2")
reciprocal_approx = _approximate("rcp")
log2_approx = _approximate("lg2")


def _exact(instruction: str):
    """Of two floats of one type, rounded to nearest; the assembler joins it with nothing."""

    def make():
        @intrinsic
        def compute(_, a, b):
            t = types.float64 if types.float64 in (a, b) else types.float32
            real, letter = (ir.DoubleType(), "d") if t is types.float64 else (ir.FloatType(), "f")
            text = f"{instruction}.rn.f{t.bitwidth} $0, $1, $2;"
            kind = ir.FunctionType(real, [real, real])
            asm = ir.InlineAsm(kind, text, f"={letter},{letter},{letter}", side_effect=False)

            def generate(context, builder, signature, args):
                given = [
                    context.cast(builder, v, of, t)
                    for v, of in zip(args, signature.args, strict=True)
                ]
                return builder.call(asm, given)

            return t(a, b), generate

        return compute

    return make


exact_sum = _exact("add")
exact_difference = _exact("sub")
exact_product = _exact("mul")


def hidden():
    """(a float, 0) -> the float with the bits of that 0, which is only known at run time."""

    @intrinsic
    def hide(_, number, zero):
        def generate(context, builder, signature, args):
            bits = ir.IntType(number.bitwidth)
            added = args[1] if number.bitwidth == 64 else builder.trunc(args[1], bits)
            seen = builder.xor(builder.bitcast(args[0], bits), added)
            return builder.bitcast(seen, args[0].type)

        return number(number, types.int64), generate

    return hide


def _through(name: str):
    """An f32 as it is read again where it is stored as a half."""

    def make():
        @intrinsic
        def rounded(_, number):
            def generate(context, builder, signature, args):
                given = context.cast(builder, args[0], number, types.float32)
                return through_half(context, builder, name, given)

            return types.float32(number), generate

        return rounded

    return make


through_f16 = _through("f16")
through_bf16 = _through("bf16")
