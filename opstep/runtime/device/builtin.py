"""Functions that kernels may call beyond Python's and `math`'s; they exist only in compiled code."""

from __future__ import annotations

from opstep.runtime.device.jit import Intrinsic


def _later(name: str):
    def make():
        from opstep.runtime.device import intrinsics

        return getattr(intrinsics, name)()

    return Intrinsic(name, make)


bits_to_float = _later("bits_to_float")
float_to_bits = _later("float_to_bits")
call_kernel = _later("call_kernel")
call_c = _later("call_c")
call_gemm = _later("call_gemm")
offset = _later("offset")
atomic_add = _later("atomic_add")
atomic_swap = _later("atomic_swap")
compare_and_swap = _later("compare_and_swap")
