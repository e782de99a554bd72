"""Every CUDA kernel compiles, without a GPU, for the oldest architecture that is tested and for the
newest; what a thread should not do is looked for in the PTX.

Of kernels that differ only by constants or by how elements are converted two are taken;
``pytest tests/cuda --every-kernel`` compiles all.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from kernels import Use, kernels, representatives
from numba.cuda.codegen import CUDACodeLibrary

from opstep.runtime.device.cuda import compiler
from opstep.runtime.device.cuda.compiler import Kernel

FILES = sorted({c.file for c in cases()})
OLD, NEW = (8, 0), (9, 0)


@contextmanager
def for_both(found: dict):
    """Within it, what numba compiles for `NEW` is translated for `OLD` as well: numba's own part of
    the work, which is the larger one, is the same.
    """
    original = CUDACodeLibrary.get_asm_strs

    def get_asm_strs(self, cc=None):
        found[OLD] = "\n".join(original(self, cc=OLD))
        return original(self, cc=cc)

    CUDACodeLibrary.get_asm_strs = get_asm_strs
    try:
        yield
    finally:
        CUDACodeLibrary.get_asm_strs = original


def compiled(kernel: Kernel, both: bool) -> dict:
    """PTX by architecture."""
    found: dict = {}
    if both:
        with for_both(found):
            found[NEW], _ = compiler.to_ptx(kernel, "sm_90")
    else:
        found[NEW], _ = compiler.to_ptx(kernel, "sm_90")
    return found


@pytest.mark.parametrize("file", FILES)
def test_kernels_compile(file, request):
    new, old = kernels(file, "sm_90"), kernels(file, "sm_80")
    each = 1000 if request.config.getoption("--every-kernel", default=False) else 2
    wrong = []
    for kernel, use in representatives(new, each).items():
        for arch, ptx in compiled(kernel, kernel in old).items():
            wrong += [f"{named(kernel, use)} {arch}: {text}" for text in complaints(kernel, ptx)]
    for kernel, use in representatives(
        {k: u for k, u in old.items() if k not in new}, each
    ).items():
        ptx, _ = compiler.to_ptx(kernel, "sm_80")
        wrong += [f"{named(kernel, use)} sm_80: {text}" for text in complaints(kernel, ptx)]
    assert wrong == []


def named(kernel: Kernel, use: Use) -> str:
    code = code_of(kernel)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno} {kernel.signature} of {use}"


def complaints(kernel: Kernel, ptx: str) -> list[str]:
    """What a kernel's PTX holds and should not."""
    found = []
    if is_elementwise(kernel) and is_single(kernel) and (line := re.search(r".*\.f64\b.*", ptx)):
        found.append(f"f64 arithmetic in f32: {line[0].strip()}")
    if is_elementwise(kernel) and "__local_depot" in ptx and not reduces_angles(ptx):
        found.append("local memory")
    return found


def is_elementwise(kernel: Kernel) -> bool:
    return code_of(kernel).co_filename.endswith("gpu/elementwise.py")


def code_of(kernel: Kernel) -> Any:
    return getattr(kernel.function, "__code__")  # noqa: B009 - callables need not have one


def is_single(kernel: Kernel) -> bool:
    return kernel.dtype.name == "f32" and not any("f64" in kind for kind in kernel.signature)


def reduces_angles(ptx: str) -> bool:
    """libdevice's sine and its relatives keep the digits of 2/π for large angles in an array."""
    return "__cudart_i2opi_f" in ptx or "__cudart_i2opi_d" in ptx
