"""Elements of one type that are written into a tensor of another."""

from __future__ import annotations

import numpy as np
import pytest
from rowwise import check, numbers

import opstep

CALLS = {
    "scatter": "scatter(x, i, s)",
    "scatter_nd": "scatter_nd(x, j, s)",
    "index_put": "index_put(x, s, i)",
    "masked_scatter": "masked_scatter(x, m, s)",
}
INDEX = np.array([1, -2], np.int32)
MASK = np.array([True, False, False, True])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("source", ["f16", "bf16", "i32", "i8"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_on_the_cpu(call, dtype, source):
    wanted = "f32" if source == "f16" else dtype
    text = f"""
graph main(x: {dtype}[4], s: {source}[2], i: i32[2], j: i32[2, 1], m: bool[4]) -> {wanted}[4] {{
  y = {CALLS[call]}
  return y
}}
"""
    x, s = numbers(dtype, 4), numbers(source, 2, seed=1)
    inputs = {"x": x, "s": s, "i": INDEX, "j": INDEX[:, None], "m": MASK}
    (found,) = opstep.loads(text).run("main", inputs).outputs
    x = x.astype(np.float32)
    x[MASK if call == "masked_scatter" else INDEX] = s.astype(np.float32)
    np.testing.assert_array_equal(found.astype(np.float32), x)


@pytest.mark.parametrize("source", ["f16", "bf16", "i32", "i8"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_simulated(dtype, source):
    x, s = numbers(dtype, 4), numbers(source, 2, seed=1)
    check("scatter", x, INDEX, s, axis=0)
    check("scatter_nd", x, INDEX[:, None], s)
    check("index_put", x, s, INDEX)
    check("masked_scatter", x, MASK, s)
