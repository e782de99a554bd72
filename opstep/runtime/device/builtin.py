"""Functions that kernels may call beyond Python's and `math`'s, only in compiled code."""

from __future__ import annotations

from typing import NamedTuple

from opstep.runtime.device.source import Intrinsic

bits_to_float = Intrinsic("bits_to_float")
float_to_bits = Intrinsic("float_to_bits")
pick = Intrinsic("pick")
fma = Intrinsic("fma")
call_kernel = Intrinsic("call_kernel")
call_c = Intrinsic("call_c", 1)
call_c_3 = Intrinsic("call_c", 3)
launch_kernel = Intrinsic("launch_kernel")
monotonic_ns = Intrinsic("monotonic_ns")
offset = Intrinsic("offset")
atomic_add = Intrinsic("atomic_add")
atomic_load = Intrinsic("atomic_load")
atomic_swap = Intrinsic("atomic_swap")
compare_and_swap = Intrinsic("compare_and_swap")

# Runs of elements that become one number, on the CPU, in an order that is the same on all machines.
fixed_sum = Intrinsic("fixed_sum")
fixed_sum_f64 = Intrinsic("fixed_sum", 64)
fixed_product = Intrinsic("fixed_product")
fixed_largest = Intrinsic("fixed_largest")
fixed_greatest = Intrinsic("fixed_greatest")
fixed_least = Intrinsic("fixed_least")
TERMS = ("add", "sub", "mul", "neg", "square")  # what `fixed_terms` can do


def fixed_terms(pointers: int, numbers: int, *steps: int) -> Intrinsic:
    return Intrinsic("fixed_terms", pointers, numbers, *steps)


fixed_squares_f64 = Intrinsic("fixed_squares", 64)
fixed_dot = Intrinsic("fixed_dot")
count_bytes = Intrinsic("count_bytes")
buffer_f32_512 = Intrinsic("buffer", 32, 512)
buffer_f64_512 = Intrinsic("buffer", 64, 512)

# Register tiles, on the CPU.
vector_length = Intrinsic("vector_length")
copy_run = Intrinsic("copy_run")
copy_vectors_3 = Intrinsic("copy_vectors", 3)
clear_run = Intrinsic("clear_run")
thin_run = Intrinsic("thin_run")
prefetch_run = Intrinsic("prefetch_run")
pack_rows = Intrinsic("pack_rows")
transpose_8x8 = Intrinsic("transpose", 8)
outer_tile_8 = Intrinsic("outer_tile", 8)
outer_tile_1 = Intrinsic("outer_tile", 1)
window_rows_3 = Intrinsic("window_rows", 3, 1)
window_rows_3_by_2 = Intrinsic("window_rows", 3, 2)
winograd_filters = Intrinsic("winograd_filters")
winograd_images = Intrinsic("winograd_images")
winograd_results = Intrinsic("winograd_results")
column_rows = Intrinsic("column_rows")
inner_tile_4x6 = Intrinsic("inner_tile", 4, 6)
inner_tile_1x8 = Intrinsic("inner_tile", 1, 8)

SIGNED_LEFT, SIGNED_RIGHT = 1, 2  # which factor's bytes are i8; the other one's are u8


class Tiles(NamedTuple):
    """The tiles of one kind: outer ones by their rows, and the one of columns."""

    outer: dict[int, Intrinsic]
    column: Intrinsic


def _tiles(*kind: int) -> Tiles:
    outer = {rows: Intrinsic("outer_tile", rows, *kind) for rows in (128, 8, 4, 2, 1)}
    return Tiles(outer, Intrinsic("column_tile", 4, *kind))


TILES = {0: _tiles(), SIGNED_LEFT: _tiles(SIGNED_LEFT), SIGNED_RIGHT: _tiles(SIGNED_RIGHT)}
