"""The processor that kernels for the CPU are compiled for."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple


class Processor(NamedTuple):
    """A processor as LLVM names it: `features` is a list like "+avx2,+fma,-avx512f"."""

    name: str
    features: str

    def has(self, feature: str) -> bool:
        return f"+{feature}" in self.features.split(",")

    @property
    def registers(self) -> tuple[int, int]:
        """(bytes of a vector register, number of such registers)."""
        if self.has("avx512f"):
            return 64, 32
        if self.has("avx2"):
            return 32, 16
        return 16, 16 if self.has("sse2") else 32


@cache
def this() -> Processor:
    """The one that this process runs on."""
    import llvmlite.binding as llvm

    return Processor(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
