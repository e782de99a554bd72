"""Kernels of convolutions compile to the instructions that they are for, with nothing in local
memory where it should be in registers.
"""

from __future__ import annotations

import numpy as np

from opstep.kernels.conv import cuda_blocks
from opstep.runtime.device.cuda.compiling import compiler
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES


class Like:
    """An operand's type alone."""

    def __init__(self, *shape: int):
        self.dtype = np.dtype(DTYPES["bf16"].numpy)
        self.shape = shape


def test_halves_take_warp_groups(monkeypatch):
    tile = next(t for t in cuda_blocks.TOGETHER if (t.rows, t.columns) == (128, 128))
    monkeypatch.setattr(cuda_blocks, "cheapest", lambda *_, **given: (tile, 1))
    op = OPS["conv2d"]
    operands: list = [Like(2, 64, 8, 8), Like(128, 64, 3, 3)]
    step, stored, results = one_step(op, operands, complete(op, {}))
    with targeting("sm_90"):
        launches, _ = Lowering(step, (*stored, *results)).prepared()
    kernels = [compiler.to_ptx(p.kernel, "sm_90")[0] for p in launches if isinstance(p, Prepared)]
    assert len(kernels) == len(launches)
    assert kernels[-1].count("wgmma.mma_async") == tile.steps // 16
    assert "cp.async.cg" in kernels[-1]
    assert not any("ld.local" in ptx for ptx in kernels)
