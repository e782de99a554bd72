"""Reductions and scans beside PyTorch's, gradients included."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from against_torch import compare  # noqa: E402

import opstep.kernels  # noqa: E402, F401 - registers the ops
from opstep.runtime.device.cpu.device import execute  # noqa: E402
from opstep.runtime.ir.op import OPS, complete  # noqa: E402

SHAPE = (3, 4, 5, 6)
AXES = [(3,), (0,), (1, 2), (0, 2), (0, 2, 3), (0, 1, 2, 3)]


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


REDUCTIONS = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
    "logsumexp": torch.logsumexp,
    "var": torch.var,
    "std": torch.std,
    "norm": lambda x, dim, keepdim: torch.linalg.vector_norm(x, 2, dim, keepdim),
    "norm, p=1": lambda x, dim, keepdim: torch.linalg.vector_norm(x, 1, dim, keepdim),
    "norm, p=inf": lambda x, dim, keepdim: torch.linalg.vector_norm(x, torch.inf, dim, keepdim),
}


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, axes, keepdims):
    op, _, attrs = name.partition(", ")
    attrs = ", ".join(
        filter(None, [f"axes={list(axes)}", f"keepdims={str(keepdims).lower()}", attrs])
    )
    compare(
        f"y = {op}(x, {attrs})",
        lambda x: REDUCTIONS[name](x, dim=axes, keepdim=keepdims),
        x=data(*SHAPE),
        tol=4e-6,
    )


@pytest.mark.parametrize("correction", [0, 1, 2])
def test_correction(correction):
    x = data(4, 7)
    for name, peer in (("var", torch.var), ("std", torch.std)):
        compare(
            f"y = {name}(x, axes=[1], correction={correction})",
            lambda x, peer=peer: peer(x, dim=1, correction=correction),
            x=x,
            tol=4e-6,
        )


def test_equal_extremes_share_the_gradient():
    x = np.array([[1, 5, 5], [2, 2, 2]], np.float32)
    compare("y = max(x, axes=[1])", lambda x: torch.amax(x, 1), x=x)
    compare("y = min(x, axes=[0, 1])", lambda x: torch.amin(x, (0, 1)), x=x)


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_prod(zeros):
    x = data(4, 5)
    x[:, :zeros] = 0
    compare("y = prod(x, axes=[1])", lambda x: x.prod(1), x=x)
    compare("y = prod(x, axes=[0], keepdims=true)", lambda x: x.prod(0, keepdim=True), x=x)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_scans(name, axis):
    x = data(3, 4, 5)
    compare(f"y = {name}(x, axis={axis})", lambda x: getattr(torch, name)(x, axis), x=x, tol=4e-6)
    if name == "cumprod":
        x[0, 1, 2] = x[1, 2, :3] = 0
        compare(f"y = cumprod(x, axis={axis})", lambda x: torch.cumprod(x, axis), x=x, tol=4e-6)


@pytest.mark.parametrize("dtype", ["i1", "i4", "u1", "?"])
def test_integers(dtype):
    x = (np.random.default_rng(0).integers(0, 9, (4, 70)) - 3 * (dtype in ("i1", "i4"))).astype(
        dtype
    )
    compare("y = sum(x, axes=[1])", lambda x: x.sum(1), x=x)
    compare("y = cumsum(x, axis=0)", lambda x: x.cumsum(0), x=x)
    if dtype != "u1":  # of which PyTorch gives bytes
        compare("y = any(x, axes=[0])", lambda x: x.any(0), x=x)
        compare("y = all(x, axes=[1])", lambda x: x.all(1), x=x)
    if dtype != "?":
        compare("y = max(x, axes=[0])", lambda x: x.amax(0), x=x)
        compare(
            "y = argmin(x, axis=1)", lambda x: x.argmin(1), x=x.astype("i8") * 70 + np.arange(70)
        )


CORNERS = [
    [1.0, np.nan, np.inf],
    [-np.inf, 2.0, np.inf],
    [-np.inf, -np.inf, -np.inf],
    [np.inf, np.inf, 1.0],
    [3e38, 3e38, 1.0],
    [0.0, -0.0, 0.0],
]


@pytest.mark.parametrize("name", ["sum", "max", "min", "logsumexp", "norm", "argmax", "argmin"])
def test_corners(name):
    """NaN, infinities and sums out of range, by rows and by columns."""
    x, op = np.array(CORNERS, np.float32), OPS[name]
    peers = {**REDUCTIONS, "argmax": torch.argmax, "argmin": torch.argmin}
    wanted = peers[name](torch.from_numpy(x), dim=1, keepdim=False).numpy()
    for array, axis in ((x, 1), (x.T, 0)):
        attrs = complete(op, {"axis": axis} if name.startswith("arg") else {"axes": (axis,)})
        (got,) = execute(op, [np.ascontiguousarray(array)], attrs)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_one_nan_among_many():
    for place in (0, 1, 31, 32, 99_998, 99_999):
        x = np.zeros(100_000, np.float32)
        x[place] = np.nan
        for name in ("max", "min", "sum", "mean", "logsumexp"):
            (got,) = execute(OPS[name], [x], complete(OPS[name], {}))
            assert np.isnan(got), (name, place)
        (got,) = execute(OPS["argmax"], [x], complete(OPS["argmax"], {}))
        assert got == place


@pytest.mark.parametrize("op", ["cummax", "cummin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_extremes(op, axis):
    x = np.random.default_rng(0).integers(-5, 6, (30, 4)).astype("f4")
    peer = getattr(torch, op)
    compare(f"y, i = {op}(x, axis={axis})", lambda x: peer(x, axis), x=x)
    x[7, 2] = np.nan
    compare(f"y, i = {op}(x, axis={axis})", lambda x: peer(x, axis), wrt=(), x=x)


@pytest.mark.parametrize("axis", [0, 1])
def test_logcumsumexp(axis):
    x = np.random.default_rng(0).standard_normal((30, 4)).astype("f4") * 5
    compare(f"y = logcumsumexp(x, axis={axis})", lambda x: torch.logcumsumexp(x, axis), x=x)
    x[3] = [np.inf, -np.inf, np.nan, 1e30]
    x[0], x[9] = -np.inf, np.inf
    compare(f"y = logcumsumexp(x, axis={axis})", lambda x: torch.logcumsumexp(x, axis), wrt=(), x=x)
