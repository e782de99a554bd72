"""Every CUDA kernel compiles, without a GPU, for the oldest architecture that it is launched on;
what a thread should not do is looked for in the PTX.

They are made of fewer parts: texts, and functions that are put into them. Every part is compiled,
for integers and for floats; ``pytest tests/kernels/test_ops_ptx.py --every-kernel`` compiles every
combination, for the newest architecture as well.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import together
from cases import cases
from cuda_kernels import Arch, Use, covering, is_single, kernels, parts
from numba.cuda.codegen import CUDACodeLibrary

from opstep.runtime.device.cuda.compiling import compiler
from opstep.runtime.device.cuda.compiling.compiler import Kernel

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


class Chosen(NamedTuple):
    """What is compiled, chosen of all that there is to compile."""

    kernels: dict[str, dict[str, list[Arch]]]
    """Of each file of test graphs, places in `kernels` of it; what each is compiled for."""
    elementwise: int  # how many of these kernels are
    left_out: list[str]  # parts that no chosen kernel has


@pytest.fixture(scope="session")
def chosen(request) -> Chosen:
    every = request.config.getoption("--every-kernel", default=False)
    return Chosen(*together.once(request, "kernels", lambda: choose(every)))


def choose(every: bool) -> Chosen:
    places: dict[Kernel, tuple[str, int]] = {}
    archs: dict[Kernel, set] = {}
    for file in FILES:
        for place, (kernel, (_, launching)) in enumerate(kernels(file, (OLD, NEW)).items()):
            places.setdefault(kernel, (file, place))
            archs.setdefault(kernel, set()).update(launching)
    taken = archs if every else {kernel: {min(archs[kernel])} for kernel in covering(archs)}
    by_file: dict[str, dict[str, list[Arch]]] = {}
    for kernel, compiled_for in taken.items():
        file, place = places[kernel]
        by_file.setdefault(file, {})[str(place)] = sorted(compiled_for)
    there = set().union(*(parts(kernel, found) for kernel, found in archs.items()))
    there -= set().union(*(parts(kernel, archs[kernel]) for kernel in taken))
    return Chosen(by_file, sum(map(is_elementwise, taken)), sorted(map(str, there)))


def compiled(kernel: Kernel, archs: list[Arch]) -> dict:
    """PTX by architecture."""
    found: dict = {}
    with for_both(found) if len(archs) > 1 else nullcontext():
        newest = max(archs)
        found[newest], _ = compiler.to_ptx(kernel, name_of(newest))
    return found


def name_of(arch: Arch) -> str:
    return f"sm_{arch[0]}{arch[1]}"


@pytest.mark.parametrize("file", FILES)
def test_kernels_compile(file, chosen):
    wrong = []
    taken = chosen.kernels.get(file, {})
    for place, (kernel, (use, _)) in enumerate(kernels(file, (OLD, NEW)).items() if taken else ()):
        archs = [(major, minor) for major, minor in taken.get(str(place), ())]
        for arch, ptx in compiled(kernel, archs).items() if archs else ():
            wrong += [f"{named(kernel, use)} {arch}: {text}" for text in complaints(kernel, ptx)]
    assert wrong == []


def test_elementwise_kernels_are_known_as_such(chosen):
    assert chosen.elementwise > 100


def test_no_part_of_a_kernel_is_left_out(chosen):
    assert chosen.left_out == []


def named(kernel: Kernel, use: Use) -> str:
    code = code_of(kernel)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno} {kernel.signature} of {use}"


# libdevice reduces large angles in f64, with the digits of 2/π in an array.
OF_ANGLES = {"sin", "cos", "tan", "digamma", "trigamma"}
# One text for all integers, whose limits f32 cannot hold.
OF_LIMITS = {"to_integer"}


def complaints(kernel: Kernel, ptx: str) -> list[str]:
    """What a kernel's PTX holds and should not."""
    found = []
    if not is_elementwise(kernel) or kernel.function.__name__ in OF_ANGLES:
        return found
    exact = kernel.function.__name__ in OF_LIMITS
    if is_single(kernel) and not exact and (line := re.search(r".*\.f64\b.*", ptx)):
        found.append(f"f64 arithmetic in f32: {line[0].strip()}")
    if "__local_depot" in ptx:
        found.append("local memory")
    return found


def is_elementwise(kernel: Kernel) -> bool:
    return code_of(kernel).co_filename.startswith("<elementwise ")


def code_of(kernel: Kernel) -> Any:
    return getattr(kernel.function, "__code__")  # noqa: B009 - callables need not have one
