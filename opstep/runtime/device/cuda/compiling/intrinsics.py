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
    emits,
    load,
    store,
    through_half,
)

__all__ = ["load", "store"]

_WHOLE = ir.IntType(32)
_LONG = ir.IntType(64)


bits_to_float = partial(intrinsic, shared.bits_to_float)
float_to_bits = partial(intrinsic, shared.float_to_bits)
pick = partial(intrinsic, shared.pick)
fma = partial(intrinsic, shared.fma)
offset = partial(intrinsic, shared.offset)


def _asm(result, given: list, text: str, constraints: str, side_effect: bool = False):
    """Instructions of PTX, as something to call."""
    return ir.InlineAsm(ir.FunctionType(result, given), text, constraints, side_effect)


def _atomic(operation):
    def make():
        @emits(lambda pointer, i, value: pointer.dtype(pointer, types.int64, pointer.dtype))
        def apply(context, builder, signature, args):
            place = builder.gep(args[0], [args[1]])
            return builder.atomic_rmw(operation, place, args[2], "seq_cst")

        return apply

    return make


atomic_add = _atomic("add")  # integers; each gives the value before
atomic_swap = _atomic("xchg")


def _shuffle(name: str, clamp: int):
    """Between the lanes of a warp, for numbers of 4 and 8 bytes."""

    def make():
        text = f"shfl.sync.{name}.b32 $0, $1, $2, {clamp}, 0xffffffff;"
        asm = _asm(_WHOLE, [_WHOLE, _WHOLE], text, "=r,r,r", True)

        @emits(lambda value, other: value(value, types.int32))
        def shuffle(context, builder, signature, args):
            number, lane = args
            own = number.type
            if signature.return_type.bitwidth < 64:
                moved = builder.call(asm, [builder.bitcast(number, _WHOLE), lane])
                return builder.bitcast(moved, own)
            bits = builder.bitcast(number, _LONG)
            low = builder.trunc(bits, _WHOLE)
            high = builder.trunc(builder.lshr(bits, _LONG(32)), _WHOLE)
            low, high = (builder.call(asm, [part, lane]) for part in (low, high))
            high = builder.shl(builder.zext(high, _LONG), _LONG(32))
            return builder.bitcast(builder.or_(builder.zext(low, _LONG), high), own)

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
    asm = _asm(ir.LiteralStructType([_WHOLE] * 2), [_WHOLE], " ".join(lines), "=r,=r,r", True)

    @emits(lambda digit: types.UniTuple(types.int64, 2)(types.int32))
    def rank(context, builder, signature, args):
        made = builder.call(asm, args)
        found = [builder.zext(builder.extract_value(made, k), _LONG) for k in (0, 1)]
        return cgutils.pack_array(builder, found)

    return rank


def digit_of():
    """(an integer, shift, flip) -> its 8 bits from bit `shift` on, xor `flip`."""

    def typed(key, shift, flip):
        own = types.int64 if key.bitwidth == 64 else types.int32
        return types.int64(own, own, types.int32)

    @emits(typed)
    def digit(context, builder, signature, args):
        bits, by, flipped = args
        moved = builder.lshr(bits, by)
        moved = builder.trunc(moved, _WHOLE) if bits.type == _LONG else moved
        return builder.zext(builder.xor(builder.and_(moved, _WHOLE(255)), flipped), _LONG)

    return digit


def global_time():
    """() -> ns."""
    asm = _asm(_LONG, [], "mov.u64 $0, %globaltimer;", "=l", True)

    @emits(lambda: types.int64())
    def read(context, builder, signature, args):
        return builder.call(asm, [])

    return read


def _division32(operation: str):
    def make():
        @emits(lambda a, b: types.int64(types.int64, types.int64))
        def divide(context, builder, signature, args):
            parts = [builder.trunc(v, _WHOLE) for v in args]
            return builder.zext(getattr(builder, operation)(*parts), _LONG)

        return divide

    return make


div32 = _division32("udiv")
mod32 = _division32("urem")


def pointer_to():
    """A shared or local array -> a pointer to its first element."""

    @emits(lambda array: types.CPointer(array.dtype)(array))
    def point(context, builder, signature, args):
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return point


def _of_two_floats(a, b):
    """Both as f64 where one is, else as f32."""
    t = types.float64 if types.float64 in (a, b) else types.float32
    return t(t, t)


def _extreme(name: str):
    def make():
        @emits(_of_two_floats)
        def choose(context, builder, signature, args):
            own = f"__nv_{name}" if signature.return_type is types.float64 else f"__nv_{name}f"
            kind = ir.FunctionType(args[0].type, [v.type for v in args])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, own), args)

        return choose

    return make


fmin = _extreme("fmin")
fmax = _extreme("fmax")


def _outermost(name: str, wins: str):
    """The extreme of two numbers, NaN where there is one; one instruction for f32."""

    def make():
        single = ir.FloatType()
        asm = _asm(single, [single, single], f"{name}.NaN.f32 $0, $1, $2;", "=f,f,f")

        @emits(_of_two_floats)
        def choose(context, builder, signature, args):
            x, y = args
            if signature.return_type is types.float32:
                return builder.call(asm, [x, y])
            nan = builder.fcmp_unordered("uno", x, x)
            return builder.select(builder.or_(builder.fcmp_ordered(wins, x, y), nan), x, y)

        return choose

    return make


min_nan = _outermost("min", "<")
max_nan = _outermost("max", ">")


def _of_singles(text: str, typed):
    """An instruction of f32."""

    def make():
        @emits(typed)
        def compute(context, builder, signature, args):
            constraints = ",".join(["=f"] + ["f"] * len(args))
            return builder.call(_asm(args[0].type, [v.type for v in args], text, constraints), args)

        return compute

    return make


def _single(x):
    return types.float32(types.float32)


def _two_singles(a, b):
    return types.float32(types.float32, types.float32)


saturated_product = _of_singles("mul.sat.f32 $0, $1, $2;", _two_singles)  # NaN becomes 0
exp2_approx = _of_singles("ex2.approx.ftz.f32 $0, $1;", _single)
reciprocal_approx = _of_singles("rcp.approx.ftz.f32 $0, $1;", _single)
log2_approx = _of_singles("lg2.approx.ftz.f32 $0, $1;", _single)


def _exact(instruction: str):
    """Of two floats of one type, rounded to nearest; the assembler joins it with nothing."""

    def make():
        @emits(_of_two_floats)
        def compute(context, builder, signature, args):
            real, letter = args[0].type, "d" if args[0].type == ir.DoubleType() else "f"
            text = f"{instruction}.rn.f{signature.return_type.bitwidth} $0, $1, $2;"
            constraints = f"={letter},{letter},{letter}"
            return builder.call(_asm(real, [real, real], text, constraints), args)

        return compute

    return make


exact_sum = _exact("add")
exact_difference = _exact("sub")
exact_product = _exact("mul")


def hidden():
    """(a float, 0) -> the float with the bits of that 0, which is only known at run time."""

    @emits(lambda number, zero: number(number, types.int64))
    def hide(context, builder, signature, args):
        bits = ir.IntType(signature.return_type.bitwidth)
        added = args[1] if bits.width == 64 else builder.trunc(args[1], bits)
        return builder.bitcast(builder.xor(builder.bitcast(args[0], bits), added), args[0].type)

    return hide


def _through(name: str):
    """An f32 as it is read again where it is stored as a half."""

    def make():
        @emits(lambda number: types.float32(types.float32))
        def rounded(context, builder, signature, args):
            return through_half(context, builder, name, args[0])

        return rounded

    return make


through_f16 = _through("f16")
through_bf16 = _through("bf16")
