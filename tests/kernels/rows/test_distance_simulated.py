"""Distances on CUDA: tiles that are not full, several of them, and NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rowwise import check, numbers


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 2.5, math.inf])
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
def test_tiles(dtype, p):
    a, b = numbers(dtype, 2, 1, 35, 37), numbers(dtype, 2, 2, 40, seed=1)[..., None]
    b = b * numbers(dtype, 37, seed=2) + np.array(0.5, b.dtype)
    a[0, 0, :4, :5] = b[0, 0, :4, :5]  # terms of 0
    a[1, 0, 33, 36] = np.nan
    check("cdist", a, b.astype(a.dtype), p=p)
