"""Kernels of matrix products compile to the instructions that they are for, with nothing in local
memory where sums should be in registers.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from opstep.kernels.matmul.cuda_gemm_tiles import HALVES, PLAIN, WARPGROUPS, Pace
from opstep.kernels.matmul.cuda_tile import WarpTile
from opstep.runtime.device.cuda.compiling import compiler
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES

LOADS = {"f32": "ld.shared.v4.f32", "f64": "ld.shared.v2.f64"}


class Like:
    """An operand's type alone."""

    def __init__(self, dtype: str):
        self.dtype = np.dtype(DTYPES[dtype].numpy)
        self.shape = (64, 64)


def ptx_of(monkeypatch, pace: Pace, dtype: str, arch: str, **attrs: bool) -> str:
    monkeypatch.setattr("opstep.kernels.matmul.cuda_gemm.cheapest", lambda *_: (pace.tile, 1))
    op = OPS["matmul"]
    step, stored, results = one_step(op, [Like(dtype), Like(dtype)], complete(op, attrs))
    with targeting(arch):
        launches, _ = Lowering(step, (*stored, *results)).prepared()
    (prepared,) = launches
    assert isinstance(prepared, Prepared)
    return compiler.to_ptx(prepared.kernel, arch)[0]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_plain_tiles_stay_in_registers(monkeypatch, dtype):
    for pace in PLAIN[DTYPES[dtype].itemsize]:
        ptx = ptx_of(monkeypatch, pace, dtype, "sm_80")
        tile: Any = pace.tile
        sums = tile.thread_rows * tile.thread_columns * tile.steps
        assert ptx.count(f"fma.rn.{dtype}") == sums
        assert LOADS[dtype] in ptx
        assert "ld.local" not in ptx


@pytest.mark.parametrize("turned", [False, True])
def test_tensor_cores(monkeypatch, turned):
    for pace in HALVES:
        ptx = ptx_of(monkeypatch, pace, "f16", "sm_80", transpose_b=turned)
        tile: Any = pace.tile
        products = tile.warp_rows // 16 * (tile.warp_columns // 8) * (tile.steps // 16)
        assert len(re.findall(r"mma\.sync\S*f16\.f16\.f32", ptx)) == products
        assert "cp.async.cg" in ptx
        assert "ld.local" not in ptx


def test_warp_groups_are_for_one_architecture(monkeypatch):
    pace = next(p for p in WARPGROUPS if isinstance(p.tile, WarpTile) and p.tile.warpgroups)
    ptx = ptx_of(monkeypatch, pace, "bf16", "sm_90")
    assert ".target sm_90a" in ptx
    assert ptx.count("wgmma.mma_async") == pace.tile.steps // 16
    assert "ld.local" not in ptx
