"""What CUDA kernels name: numba.cuda itself, and what it lacks.

Nothing here imports numba: a kernel whose machine code is in the cache is launched without it. The
names become what they stand for when a kernel is compiled, or simulated.
"""

from __future__ import annotations

from typing import Any

from opstep.runtime.device.source import Intrinsic


class Deferred:
    """A module that is imported when a kernel that names it is compiled."""

    def __init__(self, module: str):
        self.module = module
        self.digest = module

    def load(self) -> Any:
        from importlib import import_module

        return import_module(self.module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.load(), name)


class Real:
    """The float type that a kernel computes in (f32 or f64): for shared and local arrays, casts."""

    digest = "real"

    def __call__(self, number: Any) -> Any:
        raise TypeError("real exists only inside a compiled kernel")


cuda = Deferred("numba.cuda")
real = Real()

# Vectors: n neighbours that stand at a multiple of n elements, as a tuple; one wide access each.
load2 = Intrinsic("load", 2)
load4 = Intrinsic("load", 4)
store2 = Intrinsic("store", 2)  # (pointer, i, a tuple)
store4 = Intrinsic("store", 4)
store8 = Intrinsic("store", 8)

# Between the 32 threads of a warp; all threads of the block call them together.
shuffle_xor = Intrinsic("shuffle_xor")  # (value, mask): the value of lane ^ mask
shuffle_down = Intrinsic("shuffle_down")  # (value, n): that of lane + n, the own one past the end
shuffle_up = Intrinsic("shuffle_up")
shuffle_from = Intrinsic("shuffle_from")  # (value, lane): that of a lane
rank_of_byte = Intrinsic("rank_among", 8)  # (digit of 8 bits): lanes before this one that have it,
# and the last lane that does

digit_of = Intrinsic("digit_of")  # (key, shift, flip): 8 bits of an integer, from bit `shift` on

global_time = Intrinsic("global_time")  # (): the GPU's clock, ns; PTX's %globaltimer

# Non-negative integers below 2**32, several times faster than 64-bit division.
div32 = Intrinsic("div32")
mod32 = Intrinsic("mod32")

# C's fmin and fmax: a NaN gives way to a number, and -0.0 is below 0.0.
fmin = Intrinsic("fmin")
fmax = Intrinsic("fmax")
min_nan = Intrinsic("min_nan")  # NaN where there is one
max_nan = Intrinsic("max_nan")

# A pointer to the first element of a shared or local array: indices are not looked at, where those
# of arrays are compared with 0.
pointer_to = Intrinsic("pointer_to")

# Numbers held in registers as a tuple; see `cuda.compiling.tiles` for what multiplies them.
spread = Intrinsic("spread")  # (pointer, a tuple): writes it to elements 0, 1, ... of a local array
stored_bits = Intrinsic("stored_bits")  # a pointer to halves -> one to their bits, as u16
as_f32 = Intrinsic("as_f32")  # a pointer to shared memory -> one to f32 there

# Copies from global to shared memory that the thread does not wait for: (shared pointer, global
# pointer, i, whether it is there, else zeros); then groups of copies.
copy_async4 = Intrinsic("copy_async", 4)
copy_async16 = Intrinsic("copy_async", 16)
commit_copies = Intrinsic("commit_copies")

# Tiles of scores in registers, between two products: see `cuda.compiling.score_tiles`.
scale_rows = Intrinsic("scale_rows")
powers_by_rows = Intrinsic("powers_by_rows")
powers_by_columns = Intrinsic("powers_by_columns")
differences_by_rows = Intrinsic("differences_by_rows")
differences_by_columns = Intrinsic("differences_by_columns")
hide_columns = Intrinsic("hide_columns")
soften = Intrinsic("soften")
row_products = Intrinsic("row_products")
sum_of_four = Intrinsic("sum_of_four")

saturated_product = Intrinsic("saturated_product")  # of two f32, held between 0 and 1; NaN is 0

# Of an f32, as the GPU has them: within 2 units in the last place.
exp2_approx = Intrinsic("exp2_approx")
reciprocal_approx = Intrinsic("reciprocal_approx")
log2_approx = Intrinsic("log2_approx")

# Of two floats, rounded once, and never made one instruction with what comes before or behind.
exact_sum = Intrinsic("exact_sum")
exact_difference = Intrinsic("exact_difference")
exact_product = Intrinsic("exact_product")
hidden = Intrinsic("hidden")  # (a float, 0): the float, of which compilers know nothing

# An f32 rounded to what a half can hold.
through_f16 = Intrinsic("through_f16")
through_bf16 = Intrinsic("through_bf16")
