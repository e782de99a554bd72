"""What tests of ops in the simulator share: data, and results against the oracle in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.runtime.device.cuda.simulator.simulator import execute
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES, dtype_of

TOLERANCES = {"f64": 1e-12, "f32": 3e-6, "f16": 2e-3, "bf16": 1.2e-2}


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Normally distributed; integers from -5 to 5."""
    rng = np.random.default_rng([seed, *shape])
    kind = DTYPES[dtype].numpy
    if not DTYPES[dtype].is_float:
        return rng.integers(0 if dtype in ("u8", "bool") else -5, 6, shape).astype(kind)
    return rng.standard_normal(shape).astype(kind)


def widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if dtype_of(array.dtype).is_float else array


def check(name: str, *arrays: np.ndarray | None, **attrs: Any) -> list[np.ndarray]:
    """Runs an op in the simulator and holds its results against its oracle; gives the results."""
    op = OPS[name]
    attrs = complete(op, attrs)
    found = execute(op, list(arrays), attrs)
    with np.errstate(all="ignore"):
        wanted = op.oracle(*[None if a is None else widened(a) for a in arrays], **attrs)
    for own, true in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        close(own, np.asarray(true))
    return found


def close(own: np.ndarray, true: np.ndarray) -> None:
    """Equal to the tolerance of its dtype, relative to the largest."""
    if not dtype_of(own.dtype).is_float:
        np.testing.assert_array_equal(own, true)
        return
    size = np.abs(true[np.isfinite(true)]).max(initial=1.0)
    tolerance = TOLERANCES[dtype_of(own.dtype).name]
    np.testing.assert_allclose(
        own.astype(np.float64), true, rtol=tolerance, atol=tolerance * size, equal_nan=True
    )
