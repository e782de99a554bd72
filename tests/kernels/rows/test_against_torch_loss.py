"""Losses beside PyTorch's, gradients included."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from against_torch import compare  # noqa: E402

F = torch.nn.functional
RNG = np.random.default_rng(0)
REDUCTIONS = ["mean", "sum", "none"]


def data(*shape: int, dtype="f4") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def probabilities(*shape: int) -> np.ndarray:
    return RNG.uniform(0.05, 0.95, shape).astype("f4")


def labels(classes: int, *shape: int) -> np.ndarray:
    found = RNG.integers(0, classes, shape)
    found.flat[:: max(7, found.size // 3)] = -100
    return found


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "op, peer", [("softmax_cross_entropy", "cross_entropy"), ("nll_loss",) * 2]
)
@pytest.mark.parametrize("shape", [(9, 5), (130, 3), (2, 4, 6, 7), (3, 700)])
def test_losses_of_classifiers(op, peer, reduction, shape):
    x, label = data(*shape), labels(shape[1], shape[0], *shape[2:])
    compare(
        f'y = {op}(x, label, reduction="{reduction}")',
        lambda x, label: getattr(F, peer)(x, label, reduction=reduction),
        tol=1e-5,
        x=x,
        label=label,
    )
    compare(
        f'y = {op}(x, label, weight, reduction="{reduction}", ignore_index=1)',
        lambda x, label, weight: getattr(F, peer)(
            x, label, weight, reduction=reduction, ignore_index=1
        ),
        wrt=["x"],
        tol=1e-5,
        x=x,
        label=np.maximum(label, 0),
        weight=probabilities(shape[1]),
    )


def test_classes_along_the_last_axis():
    compare(
        "y = softmax_cross_entropy(x, label, axis=-1)",
        lambda x, label: F.cross_entropy(x.permute(0, 2, 1), label),
        tol=1e-5,
        x=data(3, 4, 6),
        label=labels(6, 3, 4),
    )


def test_labels_out_of_range_give_nan():
    from opstep.runtime.device.cpu.device import execute
    from opstep.runtime.ir.op import OPS, complete

    label = np.array([0, 3, -1, 2**40, -100])
    for name in ("softmax_cross_entropy", "nll_loss"):
        op = OPS[name]
        (y,) = execute(op, [data(5, 3), label], complete(op, {"reduction": "none"}))
        assert np.isnan(y).tolist() == [False, True, True, True, False]
        op = OPS[f"{name}_grad"]
        given = [data(5, 3), label, data(5)]
        (gx,) = execute(op, given, complete(op, {"reduction": "none"}))
        assert np.isnan(gx).all(1).tolist() == [False, True, True, True, False]
        assert (gx[4] == 0).all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "op, attributes",
    [
        ("mse_loss", {}),
        ("l1_loss", {}),
        ("huber_loss", {"delta": 0.7}),
        ("smooth_l1_loss", {"beta": 0.3}),
        ("smooth_l1_loss", {"beta": 0.0}),
    ],
)
@pytest.mark.parametrize("shape", [(5, 7), (20000,)])
def test_losses_of_differences(op, attributes, reduction, shape):
    written = "".join(f", {k}={v}" for k, v in attributes.items())
    compare(
        f'y = {op}(x, target, reduction="{reduction}"{written})',
        lambda x, target: getattr(F, op)(x, target, reduction=reduction, **attributes),
        x=data(*shape),
        target=data(*shape),
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy(reduction):
    compare(
        f'y = binary_cross_entropy(x, target, reduction="{reduction}")',
        lambda x, target: F.binary_cross_entropy(x, target, reduction=reduction),
        wrt=["x"],
        x=probabilities(5, 7),
        target=probabilities(5, 7),
    )
    compare(
        f'y = binary_cross_entropy_with_logits(x, target, reduction="{reduction}")',
        lambda x, target: F.binary_cross_entropy_with_logits(x, target, reduction=reduction),
        x=data(5, 7) * 20,
        target=probabilities(5, 7),
    )


def test_binary_cross_entropy_ends_at_100():
    certain = np.array([0, 0, 1, 1], "f4")
    compare(
        'y = binary_cross_entropy(x, target, reduction="none")',
        lambda x, target: F.binary_cross_entropy(x, target, reduction="none"),
        wrt=(),
        x=certain,
        target=certain[::-1].copy(),
    )


@pytest.mark.parametrize("reduction", ["sum", "none", "batchmean"])
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div(reduction, log_target):
    compare(
        f'y = kl_div(x, target, reduction="{reduction}", log_target={str(log_target).lower()})',
        lambda x, target: F.kl_div(x, target, reduction=reduction, log_target=log_target),
        tol=1e-5,
        x=data(5, 7),
        target=data(5, 7) if log_target else probabilities(5, 7),
    )


def test_a_sum_of_many_keeps_its_digits():
    x = np.full(1 << 22, 0.1, "f4")
    wanted = np.float32((1 << 22) * np.float64(np.float32(0.1)))
    from opstep.runtime.device.cpu.device import execute
    from opstep.runtime.ir.op import OPS, complete

    op = OPS["l1_loss"]
    (y,) = execute(op, [x, np.zeros_like(x)], complete(op, {"reduction": "sum"}))
    np.testing.assert_allclose(y, wanted, rtol=2e-7)
