"""What Python cannot say to numba: calls through addresses, atomics, bit casts.

Imported only where something is compiled; kernels name the `Intrinsic` objects of `device.builtin`.
"""

from __future__ import annotations

from functools import partial

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from opstep.runtime.device import shared_intrinsics as shared
from opstep.runtime.device.cpu.vectors import emits

_WORD = ir.IntType(64)


bits_to_float = partial(intrinsic, shared.bits_to_float)
float_to_bits = partial(intrinsic, shared.float_to_bits)
pick = partial(intrinsic, shared.pick)
fma = partial(intrinsic, shared.fma)
offset = partial(intrinsic, shared.offset)


def _call(builder, address, arguments, result=None):
    kind = ir.FunctionType(result or ir.VoidType(), [a.type for a in arguments])
    return builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)


def call_kernel():
    """(address, words, lo, hi, lane): runs a compiled kernel."""

    @emits(lambda address, words, lo, hi, lane: types.void(*[types.int64] * 5))
    def call(context, builder, signature, args):
        slot = ir.IntType(8).as_pointer()
        # numba's convention: slots for the result and for an error come first
        slots = [builder.bitcast(builder.alloca(_WORD, 2), slot) for _ in range(2)]
        block = builder.inttoptr(args[1], _WORD.as_pointer())
        _call(builder, args[0], [*slots, block, *args[2:]], ir.IntType(32))

    return call


def call_c(count: int):
    """(address, `count` words) -> int32: a C function of pointers and numbers, such as sem_post."""

    @emits(lambda address, *words: types.int32(*[types.int64] * (1 + count)), 1 + count)
    def call(context, builder, signature, args):
        return _call(builder, args[0], args[1:], ir.IntType(32))

    return call


def launch_kernel():
    """(cuLaunchKernel, row, stream) -> int32: what it returns. The nine words of a row: function,
    grid x y z, block x y z, shared memory, address of the arguments' addresses.
    """

    @emits(lambda address, row, stream: types.int32(types.int64, row, types.int64))
    def launch(context, builder, signature, args):
        number = ir.IntType(32)
        pointer = ir.IntType(8).as_pointer()
        function, *sizes, arguments = (
            builder.load(builder.gep(args[1], [_WORD(k)])) for k in range(9)
        )
        passed = [
            builder.inttoptr(function, pointer),
            *(builder.trunc(size, number) for size in sizes),
            builder.inttoptr(args[2], pointer),
            builder.inttoptr(arguments, pointer),
            pointer(None),
        ]
        return _call(builder, args[0], passed, number)

    return launch


def monotonic_ns():
    """(address of clock_gettime) -> nanoseconds of CLOCK_MONOTONIC."""

    @emits(lambda address: types.int64(types.int64))
    def read(context, builder, signature, args):
        number = ir.IntType(32)
        time = cgutils.alloca_once(builder, ir.LiteralStructType([_WORD, _WORD]))
        _call(builder, args[0], [number(1), time], number)
        parts = builder.load(time)
        seconds = builder.mul(builder.extract_value(parts, 0), _WORD(1_000_000_000))
        return builder.add(seconds, builder.extract_value(parts, 1))

    return read


def _atomic(operation):
    def make():
        @emits(lambda pointer, i, value: types.int64(pointer, types.int64, types.int64))
        def apply(context, builder, signature, args):
            address = builder.gep(args[0], [args[1]])
            return builder.atomic_rmw(operation, address, args[2], "seq_cst")

        return apply

    return make


atomic_add = _atomic("add")  # each gives the value before
atomic_swap = _atomic("xchg")


def atomic_load():
    """(words, i) -> the value, and what was written before it was."""

    @emits(lambda pointer, i: types.int64(pointer, types.int64))
    def load(context, builder, signature, args):
        address = builder.gep(args[0], [args[1]])
        return builder.load_atomic(address, "acquire", 8)

    return load


def compare_and_swap():
    """(words, i, expected, value) -> the value before, atomically."""

    @emits(
        lambda pointer, i, expected, value: types.int64(
            pointer, types.int64, types.int64, types.int64
        )
    )
    def apply(context, builder, signature, args):
        address = builder.gep(args[0], [args[1]])
        pair = builder.cmpxchg(address, args[2], args[3], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 0)

    return apply
