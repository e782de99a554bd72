"""What takes quantiles, counts by sign and figures of channels compiles for every dtype."""

from __future__ import annotations

import pytest

from opstep.runtime.device.cuda.compiling import compiler
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.ir.types import DTYPES, TensorType
from opstep.trace.selection import Details


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_compiles(dtype):
    t = TensorType(DTYPES[dtype], (300, 50))
    kernels = []
    for step, types in Details("quantiles,signed,channels").steps(t):
        launches, _ = Lowering(step, types).prepared()
        assert all(isinstance(launch, Prepared) for launch in launches)
        kernels += [launch.kernel for launch in launches if isinstance(launch, Prepared)]
    sorted_by = 3 * -(-(t.dtype.bits + (t.dtype.kind in "ub")) // 8)  # launches, by digits
    assert len(kernels) == sorted_by + 1 + 2 + 2  # looked up; counted, added; twice
    for kernel in dict.fromkeys(kernels):
        ptx, _ = compiler.to_ptx(kernel, "sm_90")
        assert ".entry" in ptx


def test_of_more_elements_than_places_have_numbers():
    ((step, types),) = Details("quantiles").steps(TensorType(DTYPES["f32"], (1 << 31,)))
    launches, _ = Lowering(step, types).prepared()
    for kernel in {launch.kernel for launch in launches if isinstance(launch, Prepared)}:
        assert ".entry" in compiler.to_ptx(kernel, "sm_90")[0]
