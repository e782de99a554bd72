"""Rows that are sorted by their digits, against NumPy's stable sort, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.device.cpu.device import execute
from opstep.runtime.ir.op import OPS, complete

N = 300
RNG = np.random.default_rng(0)


def floats() -> np.ndarray:
    x = RNG.standard_normal((5, N)).astype(np.float32)
    x[0, ::3], x[0, 1::3] = 0.0, -0.0
    x[1, ::7], x[1, 3::7], x[1, 4::9] = np.nan, np.inf, -np.inf
    x[2] = np.rint(x[2])
    x[3] = RNG.integers(0, 1 << 32, N, np.uint32).view(np.float32)
    return x


def integers(dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, (3, N), dtype, endpoint=True)


def wide_floats() -> np.ndarray:
    x = integers("i8").repeat(2, 0)[:4].view(np.float64)
    x[0, ::3], x[0, 1::3] = 0.0, -0.0
    x[1, ::7], x[1, 3::7], x[1, 4::9] = np.nan, np.inf, -np.inf
    x[2] = RNG.standard_normal(N).astype(np.float32)
    return x


ROWS = {
    "f4": floats(),
    "f8": wide_floats(),
    "f2": floats()[:3].astype("f2"),
    "bool": RNG.random((3, N)) < 0.5,
}
ROWS |= {dtype: integers(dtype) for dtype in ("i1", "u1", "i2", "i4", "i8")}


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("dtype", ROWS)
@pytest.mark.parametrize("name", ["sort", "argsort", "top_k"])
def test_as_a_stable_sort(name, dtype, last_first, axis):
    x = ROWS[dtype] if axis else np.ascontiguousarray(ROWS[dtype].T)
    order = {"k": 200, "largest": last_first} if name == "top_k" else {"descending": last_first}
    attrs = complete(OPS[name], {"axis": axis, **order})
    wanted = OPS[name].oracle(x, **attrs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for y, exactly in zip(execute(OPS[name], [x], attrs), wanted, strict=True):
        assert y.dtype == exactly.dtype and y.tobytes() == exactly.tobytes()
