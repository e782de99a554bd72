"""Products with long sums, whose blocks are shared among threads: right, with the same bits on any
number of them.
"""

from __future__ import annotations

import numpy as np
import pytest
from against_torch import type_text

import opstep

PRODUCTS = {
    "matmul": ("matmul(a, b)", (40, 4608), (4608, 56), (40, 56)),
    "rows by columns": ("matmul(a, b, transpose_a=true)", (4608, 40), (4608, 56), (40, 56)),
    "few rows under many": ("matmul(a, b, transpose_b=true)", (9, 4608), (56, 4608), (9, 56)),
    "conv2d": ("conv2d(a, b, padding=[1, 1])", (2, 512, 7, 7), (64, 512, 3, 3), (2, 64, 7, 7)),
    "odd conv2d": ("conv2d(a, b)", (1, 331, 5, 9), (37, 331, 3, 5), (1, 37, 3, 5)),
    "conv_transpose2d": (
        *("conv_transpose2d(a, b, stride=[2, 2])", (1, 2048, 5, 5)),
        *((2048, 24, 3, 3), (1, 24, 11, 11)),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_long_sums(name):
    call, *shapes, result = PRODUCTS[name]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype("f4") for shape in shapes)

    def run(a, b, **options):
        out = type_text(np.empty(result, a.dtype))
        head = f"graph main(a: {type_text(a)}, b: {type_text(b)}) -> {out}"
        program = opstep.loads(f"{head} {{\n  y = {call}\n  return y\n}}\n")
        return program.run("main", {"a": a, "b": b}, **options)["y"]

    exact = run(a.astype("f8"), b.astype("f8"))
    found = run(a, b)
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert error < 3e-6  # a sum of 4608 terms, one after another, is about 1.1e-6 off
    assert found.tobytes() == run(a, b, mode="async", threads=3).tobytes()
