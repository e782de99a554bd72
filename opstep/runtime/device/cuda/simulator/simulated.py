"""The intrinsics of CUDA kernels as plain Python, for the simulator: one function for each name of
`cuda.compiling.intrinsics`.

What travels between threads waits for the whole block, so all threads of a block call it together.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import threading
from collections.abc import Callable
from functools import cache
from time import monotonic_ns
from typing import Any

import numpy as np

_lock = threading.Lock()


def plain(function: Callable) -> Callable:
    """An intrinsic of no shape."""
    return lambda: function


def load(count: int):
    return lambda pointer, index: pointer.load(index, count)


def store(count: int):
    return lambda pointer, index, values: pointer.store(index, values, count)


@plain
def bits_to_float(bits):
    wide = np.asarray(bits).dtype.itemsize == 8
    return np.asarray(bits).view(np.float64 if wide else np.float32)[()]


@plain
def float_to_bits(number):
    wide = np.asarray(number).dtype.itemsize == 8
    return np.asarray(number).view(np.int64 if wide else np.int32)[()]


pick = plain(lambda condition, a, b: a if condition else b)


@cache
def fma():
    """C's, which rounds once."""
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    single, double = library.fmaf, library.fma
    single.restype, single.argtypes = ctypes.c_float, (ctypes.c_float,) * 3
    double.restype, double.argtypes = ctypes.c_double, (ctypes.c_double,) * 3

    def multiply_add(a, b, c):
        wide = any(isinstance(number, np.float64) for number in (a, b, c))
        return np.float64(double(a, b, c)) if wide else np.float32(single(a, b, c))

    return multiply_add


offset = plain(lambda pointer, count: pointer.moved(count))


def _atomic(apply):
    def act(pointer, index, value):
        with _lock:
            before = pointer[index]
            pointer[index] = apply(before, value)
        return before

    return plain(act)


atomic_add = _atomic(lambda before, value: before + before.dtype.type(value))
atomic_swap = _atomic(lambda before, value: value)


def this_thread() -> Any:
    """The `BlockThread` that runs."""
    from opstep.runtime.device.cuda.simulator.simulated_block import (
        current,  # loads numba's simulator
    )

    return current()


def _shuffle(source):
    def shuffle(value, other):
        mine = this_thread()
        lane = mine.thread_id % 32
        there = source(lane, int(other))
        given = mine.exchanged(value)
        if not 0 <= there < 32:
            return value
        return given.get(mine.thread_id - lane + there, value)

    return plain(shuffle)


shuffle_xor = _shuffle(lambda lane, mask: lane ^ mask)
shuffle_down = _shuffle(lambda lane, count: lane + count)
shuffle_up = _shuffle(lambda lane, count: lane - count)
shuffle_from = _shuffle(lambda lane, other: other)


def rank_among(bits: int):
    def rank(digit):
        mine = this_thread()
        given = mine.exchanged(int(digit))
        first = mine.thread_id // 32 * 32
        same = [t - first for t in range(first, first + 32) if given.get(t) == int(digit)]
        return np.int64(same.index(mine.thread_id - first)), np.int64(same[-1])

    return rank


digit_of = plain(lambda key, shift, flip: np.int64((int(key) >> int(shift) & 255) ^ int(flip)))


global_time = plain(lambda: np.int64(monotonic_ns()))
div32 = plain(lambda a, b: int(a) // int(b))
mod32 = plain(lambda a, b: int(a) % int(b))


def pointer_to():
    from opstep.runtime.device.cuda.simulator.simulator import Pointer

    return lambda array: Pointer(array, array.dtype)


fmin = plain(lambda a, b: _ordered(a, b)[0])
fmax = plain(lambda a, b: _ordered(a, b)[1])
min_nan = plain(lambda a, b: np.minimum(a, b))
max_nan = plain(lambda a, b: np.maximum(a, b))


def _ordered(a, b) -> tuple:
    """Both numbers, the smaller one first; twice the same where the other one is NaN."""
    if a != a or b != b:
        return (b, b) if a != a else (a, a)
    first = a < b or (a == b and bool(np.signbit(a)))
    return (a, b) if first else (b, a)


@plain
def saturated_product(a, b):
    product = np.float32(a) * np.float32(b)
    return np.float32(0) if product != product else np.clip(product, np.float32(0), 1)


exp2_approx = plain(lambda x: np.exp2(np.float32(x)))
reciprocal_approx = plain(lambda x: np.float32(1) / np.float32(x))
log2_approx = plain(lambda x: np.log2(np.float32(x)))
exact_sum = plain(lambda a, b: a + b)
exact_difference = plain(lambda a, b: a - b)
exact_product = plain(lambda a, b: a * b)
hidden = plain(lambda number, zero: number)
through_f16 = plain(lambda x: np.float32(np.float16(np.float32(x))))


def through_bf16():
    import ml_dtypes

    return lambda x: np.float32(ml_dtypes.bfloat16(np.float32(x)))
