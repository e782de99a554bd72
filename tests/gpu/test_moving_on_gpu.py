"""Copies that do what several ops that move elements would do, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from test_moving import random_moves


@pytest.mark.parametrize("seed", range(100))
def test_same_bits_as_op_by_op_on_the_cpu(seed):
    program, x = random_moves(seed)
    found = program.run("main", {"x": x}, device="cuda", steps=3)
    expected = program.run("main", {"x": x}, mode="debug")
    for a, b in zip(found.outputs, expected.outputs, strict=True):
        assert np.array_equal(a, b), program["main"]
