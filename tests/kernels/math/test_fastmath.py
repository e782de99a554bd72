"""The vectorised functions: how far off they are, in units in the last place of the true result."""

from __future__ import annotations

import numpy as np
import pytest

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.device.cpu.device import execute
from opstep.runtime.ir.op import OPS

N = 40_000
EXACT = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "cos": np.cos,
}
EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-310, 3e38, -3e38]
EDGES += [88.7, 88.8, -87.3, -103.2, -104.1, 709.7, 709.8, -745.1, -745.2, 9.0, 0.625, 0.5, 2.0**24]


def arguments(dtype: str, name: str) -> np.ndarray:
    """Numbers of every size there is, and many of everyday size."""
    rng = np.random.default_rng(0)
    width = {"f4": "u4", "f8": "u8"}[dtype]
    everything = rng.integers(0, np.iinfo(width).max, N, np.dtype(width)).view(dtype)
    daily = rng.standard_normal(N) * 3
    wide = rng.uniform(-110, 110, N) if dtype == "f4" else rng.uniform(-750, 720, N)
    with np.errstate(all="ignore"):
        x = np.concatenate([everything, daily, wide, EDGES]).astype(dtype)
    if name in ("sin", "cos"):
        x = x[~(np.abs(x) > 1e9)]  # NumPy's long double reduces no further exactly
    return x


def off_by(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in units in the last place; infinite where one is finite and the other is not."""
    rounded = exact.astype(got.dtype)
    unit = np.spacing(np.abs(rounded)).astype(exact.dtype)
    distance = np.abs(got.astype(exact.dtype) - exact) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(np.isfinite(rounded) & np.isfinite(got), distance, np.where(same, 0, np.inf))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", EXACT)
def test_units_in_the_last_place(name, dtype):
    x = arguments(dtype, name)
    (got,) = execute(OPS[name], [x], {})
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype(np.float64 if dtype == "f4" else np.longdouble))
        off = off_by(got, exact)
    worst = int(np.argmax(off))
    assert off[worst] <= 2.0, f"{name}({x[worst]!r}) = {got[worst]!r}, exactly {exact[worst]!r}"


@pytest.mark.parametrize("name", ["erf", "erfinv", "atan"])
def test_in_f32_beside_the_oracle(name):
    x = arguments("f4", name)
    if name == "erfinv":
        near = 1 - np.geomspace(6e-8, 1, 1000)
        x = np.concatenate([x, np.tanh(x), near, -near]).astype(np.float32)
    (got,) = execute(OPS[name], [x], {})
    with np.errstate(all="ignore"):
        off = off_by(got, OPS[name].oracle(x.astype(np.float64)))
    worst = int(np.argmax(off))
    assert off[worst] <= 2.0, f"{name}({x[worst]!r}) = {got[worst]!r}"


def test_atan2():
    rng = np.random.default_rng(1)
    odd = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, -3, 3e38, -3e38, 1e-38, 1e-45, -1e-45]
    y, x = (v.ravel() for v in np.meshgrid(odd, odd))
    y = np.concatenate([y, rng.standard_normal(N), rng.standard_normal(N) * 1e20])
    x = np.concatenate([x, rng.standard_normal(N), rng.standard_normal(N) * 1e20])
    y, x = y.astype(np.float32), x.astype(np.float32)
    (got,) = execute(OPS["atan2"], [y, x], {})
    exact = np.arctan2(y.astype(np.float64), x.astype(np.float64))
    off = off_by(got, exact)
    worst = int(np.argmax(off))
    assert off[worst] <= 2.0, f"atan2({y[worst]!r}, {x[worst]!r}) = {got[worst]!r}"
    zero = exact == 0
    assert (np.signbit(got[zero]) == np.signbit(exact[zero])).all()


def test_remainders_are_exact():
    rng = np.random.default_rng(1)
    a, b = (v.ravel() for v in np.meshgrid(EDGES, EDGES))
    whole = rng.standard_normal(N).astype(np.float32)  # of which multiples leave almost nothing
    with np.errstate(all="ignore"):
        a = np.concatenate([a, whole * rng.integers(-(1 << 24), 1 << 24, N), whole]).astype("f4")
        b = np.concatenate([b, whole, rng.standard_normal(N) * 1e-3]).astype("f4")
        everything = rng.integers(0, 1 << 32, (2, N), np.uint32).view("f4")
        a, b = np.concatenate([a, everything[0]]), np.concatenate([b, everything[1]])
        for name, exact in (("fmod", np.fmod), ("rem", np.mod)):
            (got,) = execute(OPS[name], [a, b], {})
            wanted = exact(a, b)
            np.testing.assert_array_equal(got, wanted)
            number = ~np.isnan(wanted)
            assert (np.signbit(got) == np.signbit(wanted))[number].all()


def test_pow():
    rng = np.random.default_rng(1)
    odd = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5, -0.5, 2, -2, 3, -3, 1e30, 1e-30, 2.0**24]
    a, b = (v.ravel() for v in np.meshgrid(odd, odd))
    a = np.concatenate([a, np.abs(rng.standard_normal(N)), rng.standard_normal(N) * 4])
    b = np.concatenate([b, rng.standard_normal(N) * 8, rng.integers(-20, 21, N)])
    a, b = a.astype(np.float32), b.astype(np.float32)
    (got,) = execute(OPS["pow"], [a, b], {})
    with np.errstate(all="ignore"):
        off = off_by(got, np.power(a.astype(np.float64), b.astype(np.float64)))
    assert off.max() <= 1.0


ODD = ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "expm1", "log1p", "erf"]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", ODD)
def test_zero_keeps_its_sign(name, dtype):
    """Bit for bit as in the C library, in vectors and in what is left over at their ends."""
    x = np.tile(np.array([0.0, -0.0, -0.0], dtype), 13)
    (got,) = execute(OPS[name], [x], {})
    assert got.tobytes() == x.tobytes()


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sin", "pow"])
def test_a_number_alone_is_as_in_a_row(name):
    """Vectors and what is left over at their ends compute the same bits."""
    op, x = OPS[name], np.random.default_rng(2).uniform(0.1, 5, 67).astype(np.float32)
    operands = [x] * len(op.operands)
    (row,) = execute(op, operands, {})
    alone = [execute(op, [o[k : k + 1] for o in operands], {})[0][0] for k in range(x.size)]
    assert row.tobytes() == np.array(alone, np.float32).tobytes()
