"""Work is cut by how many threads share it, and no bit depends on that."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.runtime.ir.op import OPS

LAYERS = {
    "three by three": ((64, 14), (96, 64, 3, 3), "padding=[1, 1]"),
    "one by one": ((96, 14), (200, 96, 1, 1), ""),
    "of one channel": ((300, 14), (300, 1, 3, 3), "padding=[1, 1], groups=300"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_threads_share_one_image(name):
    (channels, size), filters, attrs = LAYERS[name]
    shapes = f"x: f32[1, {channels}, {size}, {size}], w: f32{list(filters)}, b: f32[{filters[0]}]"
    program = opstep.loads(
        f"graph main({shapes}) -> f32[1, {filters[0]}, {size}, {size}] {{\n"
        f"  y = conv2d({', '.join(filter(None, ('x, w, b', attrs)))})\n  return y\n}}\n"
    )
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((1, channels, size, size), np.float32),
        "w": rng.standard_normal(filters, np.float32),
        "b": rng.standard_normal(filters[0], np.float32),
    }
    alone, *others = (program.run("main", inputs, threads=n).outputs[0] for n in (1, 2, 3))
    assert all(alone.tobytes() == other.tobytes() for other in others)
    oracle = OPS["conv2d"].oracle
    wide = [v.astype(np.float64) for v in inputs.values()]
    pad = (1, 1) if "padding" in attrs else (0, 0)
    groups = 300 if "groups" in attrs else 1
    expected = oracle(*wide, stride=(1, 1), padding=pad, dilation=(1, 1), groups=groups)
    np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
