"""The bias that is added behind a library's product or convolution."""

from __future__ import annotations

import numpy as np
import pytest

from opstep.kernels.matmul.vendor import add_bias
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.simulator.simulator import run
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.types import DTYPES


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("shape", [(3, 5, 7), (3, 4, 8), (2, 3, 1), (70, 6), (3, 300), (5, 264)])
def test_each_channel_has_its_own(shape, dtype):
    numpy = np.dtype(DTYPES[dtype].numpy)
    channels, plane = (shape[1], shape[2]) if len(shape) == 3 else (shape[1], 1)
    y = np.arange(np.prod(shape)).astype(numpy).reshape(shape)
    bias = (np.arange(channels) * 0.5).astype(numpy)
    step, stored, results = one_step(OPS["add"], [y, np.resize(bias, shape)], {})
    lowering = Lowering(step, (stored[0], stored[0].with_shape((channels,)), *results))
    _, b, target = lowering.args()
    (launch,), _ = lowering.lowered(add_bias(b, target, channels, plane))
    assert isinstance(launch, Prepared)
    made = y.reshape(-1).copy()
    run(launch, [None, bias.view(np.uint8), made.view(np.uint8)], np.zeros(8, np.uint8))
    wide = bias.astype(np.float64).reshape(-1, *[1] * (len(shape) - 2))
    expected = (y.astype(np.float64) + wide).astype(numpy)
    np.testing.assert_array_equal(made.reshape(shape), expected)
