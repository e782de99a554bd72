"""Registers, spills and shared memory of attention's kernels, as they are compiled for an
architecture. It needs no GPU, but NVIDIA's `ptxas` (pip install nvidia-cuda-nvcc).

    PYTHONPATH=. python benchmarks/gpu/compiled.py sm_80 sm_90
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.device.cuda.compiling.compiler import Kernel, to_ptx
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES

WHEEL = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin", "ptxas")
MASKS = ("", "bool", "f32")
CASES = [("bf16", length) for length in (64, 80, 128, 256)]
CASES += [("f32", length) for length in (64, 128, 256)]


class Like:
    """An operand's type alone."""

    def __init__(self, dtype: str, *shape: int):
        self.dtype = np.dtype(DTYPES[dtype].numpy)
        self.shape = shape


def prepared(arch: str, dtype: str, length: int, suffix: str, mask: str) -> list[Prepared]:
    op = OPS[f"scaled_dot_product_attention{suffix}"]
    operands = [Like(dtype, 2, 8, 1024, length)] * (4 if suffix else 3)
    operands += [Like(mask, 1024, 1024)] if mask else []
    with targeting(arch):
        step, stored, results = one_step(op, operands, complete(op, {}))
        found, _ = Lowering(step, (*stored, *results)).prepared()
    return [p for p in found if isinstance(p, Prepared)]


def assembled(kernel: Kernel, arch: str) -> str:
    """What the assembler says of it."""
    ptx, _ = to_ptx(kernel, arch)
    target = arch + "a" if f".target {arch}a" in ptx else arch
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        command = [str(WHEEL) if WHEEL.exists() else "ptxas", "-v", f"-arch={target}", str(path)]
        done = subprocess.run(
            [*command, "-o", str(path.with_suffix(".cubin"))], capture_output=True, text=True
        )
    return done.stderr


def main() -> None:
    for arch in sys.argv[1:] or ["sm_80", "sm_90"]:
        for dtype, length in CASES:
            for suffix in ("", "_grad"):
                for mask in MASKS:
                    for launch in prepared(arch, dtype, length, suffix, mask):
                        said = assembled(launch.kernel, arch)
                        registers = re.search(r"Used (\d+) registers", said)
                        spilled = re.search(r"(\d+) bytes spill stores", said)
                        figures = (
                            f"{registers[1] if registers else '?':>4} registers"
                            f" {spilled[1] if spilled else '?':>5} B spilled"
                            f" {launch.kernel.threads:4} threads {launch.shared:7} B shared"
                        )
                        name = launch.kernel.function.__name__
                        print(f"{arch} {dtype} {length:3} {name:30} {figures}", flush=True)


if __name__ == "__main__":
    main()
