"""Functions that kernels may call beyond Python's and `math`'s, only in compiled code."""

from __future__ import annotations

from opstep.runtime.device.jit import Intrinsic


def _later(name: str):
    def make():
        from opstep.runtime.device import intrinsics

        return getattr(intrinsics, name)()

    return Intrinsic(name, make)


bits_to_float = _later("bits_to_float")
float_to_bits = _later("float_to_bits")
pick = _later("pick")
call_kernel = _later("call_kernel")
call_c = _later("call_c")
monotonic_ns = _later("monotonic_ns")
offset = _later("offset")
atomic_add = _later("atomic_add")
atomic_swap = _later("atomic_swap")
compare_and_swap = _later("compare_and_swap")


def _tile(name: str, *shape: int):
    def make():
        from opstep.runtime.device import tiles

        return getattr(tiles, name)(*shape)

    return Intrinsic("_".join([name, *map(str, shape)]), make)


vector_length = _tile("vector_length")
copy_run = _tile("copy_run")
clear_run = _tile("clear_run")
outer_tile_8 = _tile("outer_tile", 8)
outer_tile_4 = _tile("outer_tile", 4)
outer_tile_2 = _tile("outer_tile", 2)
outer_tile_1 = _tile("outer_tile", 1)
inner_tile_4x6 = _tile("inner_tile", 4, 6)
inner_tile_1x8 = _tile("inner_tile", 1, 8)
