"""softmax and normalisation beside PyTorch's, gradients included."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from against_torch import compare  # noqa: E402

F = torch.nn.functional
RNG = np.random.default_rng(0)


def data(*shape: int, dtype="f4") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize(
    "shape, axis", [((5, 9), 1), ((9, 5), 0), ((2, 7, 66), 1), ((3, 2000), -1)]
)
def test_softmax(op, shape, axis):
    compare(f"y = {op}(x, axis={axis})", lambda x: getattr(torch, op)(x, axis), x=data(*shape) * 5)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_what_is_not_finite(op, axis):
    x = np.zeros((6, 40), "f4")
    x[0, 3], x[5, 39] = np.nan, np.nan
    x[1], x[3, :39] = -np.inf, -np.inf
    x[2, 5] = np.inf
    x[4] = 1e30
    x = x if axis == 1 else x.T.copy()
    compare(f"y = {op}(x, axis={axis})", lambda x: getattr(torch, op)(x, axis), wrt=(), x=x)


@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (9, 70), (2, 5, 3)])
def test_batch_norm(shape):
    c = shape[1]
    compare(
        "y = batch_norm(x, scale, bias, mean, var, epsilon=0.001)",
        lambda x, scale, bias, mean, var: (
            (x - mean.reshape(-1, *[1] * (x.ndim - 2)))
            * (scale / (var + 0.001).sqrt()).reshape(-1, *[1] * (x.ndim - 2))
            + bias.reshape(-1, *[1] * (x.ndim - 2))
        ),
        tol=1e-5,
        x=data(*shape),
        scale=data(c),
        bias=data(c),
        mean=data(c),
        var=np.abs(data(c)) + 0.1,
    )


@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (9, 70), (2, 5, 33)])
def test_batch_norm_train(shape):
    def peer(x, scale, bias):
        others = [k for k in range(x.ndim) if k != 1]
        y = F.batch_norm(x, None, None, scale, bias, training=True)
        return y, x.mean(others), x.var(others, correction=0)

    compare(
        "y, mean, var = batch_norm_train(x, scale, bias)",
        peer,
        tol=1e-5,
        x=data(*shape) + 3,
        scale=data(shape[1]),
        bias=data(shape[1]),
    )


@pytest.mark.parametrize("shape", [(64, 2, 50), (300, 2), (2, 2, 700)])
@pytest.mark.parametrize("mean", [3e3, -1e6])
def test_a_large_mean_costs_no_digits(shape, mean):
    others = (0, *range(2, len(shape)))
    compare(
        "y, mean, var = batch_norm_train(x, scale, bias)",
        lambda x, scale, bias: (
            (F.batch_norm(x.double(), None, None, training=True)).float(),
            x.double().mean(others).float(),
            x.double().var(others, correction=0).float(),
        ),
        wrt=(),
        tol=1e-6,
        x=data(*shape) + np.float32(mean),
        scale=np.ones(2, "f4"),
        bias=np.zeros(2, "f4"),
    )


@pytest.mark.parametrize("shape, last", [((4, 7), 1), ((2, 3, 4, 5), 2), ((3, 1500), 1)])
def test_layer_norm(shape, last):
    rows = list(shape[-last:])
    compare(
        f"y = layer_norm(x, scale, bias, shape={rows})",
        lambda x, scale, bias: F.layer_norm(x, rows, scale, bias),
        tol=1e-5,
        x=data(*shape),
        scale=data(*rows),
        bias=data(*rows),
    )
    compare(f"y = layer_norm(x, shape={rows})", lambda x: F.layer_norm(x, rows), x=data(*shape))


@pytest.mark.parametrize("shape", [(4, 7), (2, 3, 400)])
def test_rms_norm(shape):
    rows = [shape[-1]]
    compare(
        f"y = rms_norm(x, scale, shape={rows}, epsilon=1e-6)",
        lambda x, scale: F.rms_norm(x, rows, scale, 1e-6),
        tol=1e-5,
        x=data(*shape),
        scale=data(*rows),
    )


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(groups):
    compare(
        f"y = group_norm(x, scale, bias, groups={groups})",
        lambda x, scale, bias: F.group_norm(x, groups, scale, bias),
        tol=1e-5,
        x=data(3, 6, 4, 5),
        scale=data(6),
        bias=data(6),
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_statistics_of_halves_are_f32(dtype):
    from opstep.runtime.device.cpu.device import execute
    from opstep.runtime.ir.op import OPS, complete

    op = OPS["batch_norm_train"]
    x, scale, bias = data(5, 3, 4), data(3), data(3)
    given = [a.astype(dtype) for a in (x, scale, bias)]
    y, mean, var = execute(op, given, complete(op, {}))
    wanted = np.float64 if dtype is np.float64 else np.float32
    assert (y.dtype, mean.dtype, var.dtype) == (dtype, wanted, wanted)
    np.testing.assert_allclose(var, given[0].astype("f8").var((0, 2)), rtol=1e-6)


@pytest.mark.parametrize("shape, last", [((4, 7), 1), ((2, 3, 4, 5), 2)])
def test_layer_norm_with_statistics(shape, last):
    rows = list(shape[-last:])
    compare(
        f"y, mean, rstd = layer_norm_with_statistics(x, scale, bias, shape={rows})",
        lambda x, scale, bias: torch.native_layer_norm(x, rows, scale, bias, 1e-5),
        wrt=(),
        x=data(*shape),
        scale=data(*rows),
        bias=data(*rows),
    )


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_with_statistics(groups):
    compare(
        f"y, mean, rstd = group_norm_with_statistics(x, scale, bias, groups={groups})",
        lambda x, scale, bias: torch.native_group_norm(x, scale, bias, 3, 6, 20, groups, 1e-5),
        wrt=(),
        x=data(3, 6, 4, 5) + 2,
        scale=data(6),
        bias=data(6),
    )


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("shapes", [((5, 7), (4, 7)), ((2, 30, 7), (2, 40, 7))])
def test_cdist(p, shapes):
    compare(
        f"y = cdist(a, b, p={p})",
        lambda a, b: torch.cdist(a, b, p, compute_mode="donot_use_mm_for_euclid_dist"),
        tol=4e-6,
        a=data(*shapes[0]),
        b=data(*shapes[1]),
    )
