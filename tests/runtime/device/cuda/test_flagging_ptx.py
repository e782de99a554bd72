"""The kernel that raises flags compiles for every float, and reads 16 bytes at a time."""

from __future__ import annotations

import pytest

from opstep.runtime.device.cuda.compiling import compiler
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.flagging import step_for, step_for_several
from opstep.runtime.ir.types import DTYPES, TensorType
from opstep.runtime.plan.internal import TOGETHER

WIDE = {"f64": ".v2.", "f32": ".v4.", "f16": ".v4.", "bf16": ".v4."}


@pytest.mark.parametrize("dtype", WIDE)
def test_it_compiles(dtype):
    launches, workspace = Lowering(*step_for(TensorType(DTYPES[dtype], (1000,)))).prepared()
    (launch,) = launches
    assert isinstance(launch, Prepared)
    ptx, _ = compiler.to_ptx(launch.kernel, "sm_90")
    loads = [line for line in ptx.splitlines() if "ld.global" in line and WIDE[dtype] in line]
    assert len(loads) >= 4
    assert ".local" not in ptx
    assert workspace == 0


@pytest.mark.parametrize("dtype", WIDE)
def test_that_of_several_tensors_compiles(dtype):
    t = TensorType(DTYPES[dtype], (1000,))
    (launch,), _ = Lowering(*step_for_several([t] * TOGETHER, range(TOGETHER), 64)).prepared()
    assert isinstance(launch, Prepared)
    ptx, _ = compiler.to_ptx(launch.kernel, "sm_90")
    loads = [line for line in ptx.splitlines() if "ld.global" in line and WIDE[dtype] in line]
    assert len(loads) >= 4
    assert ".local" not in ptx
