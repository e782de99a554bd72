"""Every optimizer beside PyTorch's, on given gradients; Lion beside its paper's formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pushing import SHAPES, gradients, run_beside, text

import opstep
from opstep import optim

# Hyperparameters have the names that PyTorch gives them.
CASES = {
    "SGD": [
        {"lr": 0.1},
        {"lr": 0.1, "weight_decay": 0.1},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.03, "momentum": 0.8, "nesterov": True, "weight_decay": 0.2},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3},
    ],
    "RMSprop": [
        {},
        {"lr": 1e-3, "alpha": 0.9, "momentum": 0.5, "centered": True, "weight_decay": 0.1},
    ],
    "Adam": [
        {},
        {"lr": 1e-2, "betas": (0.5, 0.99), "eps": 1e-6, "weight_decay": 0.1},
        {"betas": (0.0, 0.0)},
    ],
    "AdamW": [{}, {"lr": 1e-2, "weight_decay": 0.3}, {"weight_decay": 0.0}],
    "Adafactor": [
        {},
        {"lr": 0.1, "beta2_decay": -0.5, "eps": (1e-9, 1e-2), "d": 2.0, "weight_decay": 0.1},
    ],
}


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize(
    "name, case", [(name, k) for name in CASES for k in range(len(CASES[name]))]
)
def test_as_pytorch_does_it(name, case, dtype):
    given = CASES[name][case]
    ours, theirs = getattr(optim, name), getattr(torch.optim, name)
    run_beside(ours(**given), lambda tensors: theirs(tensors, **given), dtype)


@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_lion(dtype):
    """Algorithm 2 of the paper, in NumPy."""
    lr, b1, b2, decay = 1e-3, 0.9, 0.99, 0.1
    program = opstep.loads(text(dtype)).with_optimizer("loss", optim.Lion(lr, weight_decay=decay))
    params = {n: np.array(program.params[n], np.float64) for n in SHAPES}
    means = {n: np.zeros_like(p) for n, p in params.items()}
    tolerance = 1e-12 if dtype == "f64" else 1e-6
    for batch in gradients(25, dtype):
        program.run("loss_step", batch)
        for (name, p), g in zip(params.items(), batch.values(), strict=True):
            update = np.sign(b1 * means[name] + (1 - b1) * g) + decay * p
            params[name] = p - lr * update
            means[name] = b2 * means[name] + (1 - b2) * g
            np.testing.assert_allclose(
                program.params[name], params[name], rtol=tolerance, atol=tolerance
            )


# Hyperparameters from edge to edge: 0, tiny, and the largest that are allowed.
RATE = st.sampled_from([0.0, 1e-12, 1e-3, 0.1, 1.0, 10.0]) | st.floats(0, 1)
SHARE = st.sampled_from([0.0, 1e-9, 0.5, 0.9, 0.999, 0.9999]) | st.floats(0, 0.9999)
DECAY = st.sampled_from([0.0, 1e-9, 0.1, 1.0]) | st.floats(0, 1)
EPS = st.sampled_from([1e-30, 1e-8, 1.0, 100.0])


@settings(max_examples=25, deadline=None)
@given(lr=RATE, momentum=SHARE, dampening=SHARE, weight_decay=DECAY, nesterov=st.booleans())
def test_sgd_with_any_hyperparameters(**given):
    if given["nesterov"]:
        given["momentum"], given["dampening"] = max(given["momentum"], 0.1), 0.0
    run_beside(optim.SGD(**given), lambda ts: torch.optim.SGD(ts, **given), "f64", 4)


@settings(max_examples=25, deadline=None)
@given(lr=RATE, betas=st.tuples(SHARE, SHARE), weight_decay=DECAY, eps=EPS, apart=st.booleans())
def test_adam_with_any_hyperparameters(apart, **given):
    ours, theirs = (optim.AdamW, torch.optim.AdamW) if apart else (optim.Adam, torch.optim.Adam)
    given["lr"] = min(given["lr"], 1.0)
    run_beside(ours(**given), lambda ts: theirs(ts, **given), "f64", 4)


@settings(max_examples=25, deadline=None)
@given(lr=RATE, alpha=SHARE, momentum=SHARE, weight_decay=DECAY, eps=st.sampled_from([1e-3, 1.0]))
def test_rmsprop_with_any_hyperparameters(**given):
    run_beside(optim.RMSprop(**given), lambda ts: torch.optim.RMSprop(ts, **given), "f64", 4)


@settings(max_examples=25, deadline=None)
@given(
    lr=RATE, beta2_decay=st.floats(-1, -0.1), d=st.floats(1, 10), weight_decay=DECAY,
    eps=st.tuples(st.sampled_from([None, 1e-30, 1e-3]), st.floats(1e-6, 1)),
)  # fmt: skip
def test_adafactor_with_any_hyperparameters(**given):
    run_beside(optim.Adafactor(**given), lambda ts: torch.optim.Adafactor(ts, **given), "f64", 4)


def test_bias_correction_keeps_its_digits():
    """After many steps with beta near 1, f32 would be off by 1e-3 in the first of them."""
    betas = (0.9, 0.99999)
    run_beside(optim.Adam(betas=betas), lambda ts: torch.optim.Adam(ts, betas=betas), "f32", 10)
