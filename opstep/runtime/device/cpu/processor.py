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

    @property
    def multiplies_bytes(self) -> bool:
        """Whether an instruction adds products of bytes, four to each i32 of a register."""
        if self.registers[0] == 64:
            return self.has("avx512vnni")
        vnni = self.has("avxvnni") or (self.has("avx512vnni") and self.has("avx512vl"))
        return self.registers[0] == 32 and vnni


@cache
def this() -> Processor:
    """The one that this process runs on."""
    import llvmlite.binding as llvm

    return Processor(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
