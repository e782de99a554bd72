"""Attention's kernels compile to the instructions that they are for: scores and sums in registers,
of which there are enough, as there is of shared memory.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from opstep.kernels.rows.cuda_attention_tiles import shared_limit
from opstep.runtime.device.cuda.compiling import compiler
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.disassembly import cuda_resources
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES

REGISTERS = 1 << 16  # of a multiprocessor


@pytest.fixture(autouse=True)
def once(monkeypatch):
    """A kernel whose text is read is not compiled again for what it takes."""
    monkeypatch.setattr(compiler, "to_ptx", cache(compiler.to_ptx))


class Like:
    """An operand's type alone."""

    def __init__(self, dtype: str, *shape: int):
        self.dtype = np.dtype(DTYPES[dtype].numpy)
        self.shape = shape


def launches(arch: str, dtype: str, length: int, gradient: bool, mask: str = "") -> list[Prepared]:
    name = "scaled_dot_product_attention" + ("_grad" if gradient else "")
    operand = Like(dtype, 2, 8, 500, length)
    operands = [operand] * (4 if gradient else 3) + [Like(mask, 500, 500) if mask else None]
    with targeting(arch):
        step, stored, results = one_step(OPS[name], operands, complete(OPS[name], {}))
        found, _ = Lowering(step, (*stored, *results)).prepared()
    return [p for p in found if isinstance(p, Prepared)]


def fits(prepared: Prepared, arch: str) -> None:
    """What a block takes is there, and nothing that a thread holds is in memory."""
    with targeting(arch):
        assert prepared.shared <= shared_limit()
    registers = cuda_resources(prepared.kernel, arch).registers
    threads = prepared.kernel.threads * max(1, prepared.kernel.blocks)
    assert registers and registers <= 255
    assert -(-registers // 8) * 8 * threads <= REGISTERS


@pytest.mark.parametrize("gradient, length", [(False, 72), (True, 128)])
def test_tensor_cores(gradient, length):
    for prepared in launches("sm_80", "f16", length, gradient):
        ptx, _ = compiler.to_ptx(prepared.kernel, "sm_80")
        assert re.search(r"mma\.sync\S*f16\.f16\.f32", ptx)
        assert "cp.async.cg" in ptx
        assert "ld.local" not in ptx and "call" not in ptx
        fits(prepared, "sm_80")


@pytest.mark.parametrize("gradient, length", [(False, 64), (False, 128), (True, 128)])
def test_warp_groups(gradient, length):
    for prepared in launches("sm_90", "bf16", length, gradient):
        ptx, _ = compiler.to_ptx(prepared.kernel, "sm_90")
        assert ".target sm_90a" in ptx
        names = set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+)k16\.f32\.bf16", ptx))
        assert names == {"m64n64", f"m64n{length}"}
        assert "ld.local" not in ptx and "call" not in ptx
        fits(prepared, "sm_90")


@pytest.mark.parametrize("mask", ["bool", "f32"])
def test_masks(mask):
    for prepared in launches("sm_90", "bf16", 64, mask == "f32", mask):
        ptx, _ = compiler.to_ptx(prepared.kernel, "sm_90")
        assert "ld.local" not in ptx and "call" not in ptx
        fits(prepared, "sm_90")


@pytest.mark.parametrize("length, rows, keys", [(64, 64, 64), (256, 32, 32)])
def test_register_tiles(length, rows, keys):
    (prepared,) = launches("sm_80", "f32", length, False)
    ptx, _ = compiler.to_ptx(prepared.kernel, "sm_80")
    scores, sums = rows * 64 // 128 * 32, rows * length // 128 * keys  # terms of a thread
    assert ptx.count("fma.rn.f32") >= scores + sums
    assert "ld.local" not in ptx
    fits(prepared, "sm_80")


def test_longest_rows():
    for arch in ("sm_89", "sm_90"):
        (prepared,) = launches(arch, "f16", 256, False)
        fits(prepared, arch)
