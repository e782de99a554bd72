"""Params of two bytes: exact values beside them, and losses that are scaled."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import opstep
from opstep import optim

LOSS = """
param fc.w: {dtype}[4, 6] = normal(std=0.5)
param fc.b: f32[4] = zeros()

graph loss(x: {dtype}[N, 6], y: f32[N, 4]) -> f32[] {{
  h = linear(x, fc.w)
  wide = cast(h, dtype=f32)
  p = add(wide, fc.b)
  l = mse_loss(p, y)
  return l
}}
"""
TYPES = {"f16": (np.float16, torch.float16), "bf16": (ml_dtypes.bfloat16, torch.bfloat16)}


def batches(dtype: str, count: int):
    rng = np.random.default_rng(1)
    return [
        {
            "x": rng.standard_normal((8, 6)).astype(TYPES[dtype][0]),
            "y": rng.standard_normal((8, 4)).astype(np.float32),
        }
        for _ in range(count)
    ]


def wide(array) -> np.ndarray:
    return np.asarray(array, np.float32)


class Reference:
    """PyTorch, with exact weights in f32 that are rounded for the forward pass."""

    def __init__(self, program, dtype: str, optimizer, scaler=None):
        self.dtype = TYPES[dtype][1]
        self.w = torch.tensor(wide(program.params["fc.w"]), requires_grad=True)
        self.b = torch.tensor(program.params["fc.b"], requires_grad=True)
        self.optimizer, self.scaler = optimizer([self.w, self.b]), scaler

    def step(self, batch) -> float:
        self.optimizer.zero_grad()
        x = torch.tensor(wide(batch["x"])).to(self.dtype)
        h = (x @ self.w.to(self.dtype).T).float()
        loss = torch.nn.functional.mse_loss(h + self.b, torch.tensor(batch["y"]))
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
            return loss.item()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_exact_weights_beside_rounded_ones(dtype, kind):
    ours = getattr(optim, kind)(lr=1e-3, weight_decay=0.01)
    program = opstep.loads(LOSS.format(dtype=dtype)).with_optimizer("loss", ours, ema=0.5)
    other = Reference(
        program, dtype, lambda ts: getattr(torch.optim, kind)(ts, lr=1e-3, weight_decay=0.01)
    )
    for batch in batches(dtype, 25):
        loss = program.run("loss_step", batch)["l"]
        assert loss == pytest.approx(other.step(batch), rel=2e-3)
        exact = program.params["fc.w.master"]
        np.testing.assert_allclose(exact, other.w.detach().numpy(), rtol=1e-3, atol=3e-4)
        assert program.params["fc.w"].tobytes() == exact.astype(TYPES[dtype][0]).tobytes()
    assert np.abs(program.params["fc.w.ema"] - exact).max() < 2e-3
    assert "fc.b.master" not in program.params


def test_small_changes_are_lost_without_exact_weights():
    changed = {}
    for master in (True, False):
        program = opstep.loads(LOSS.format(dtype="bf16")).with_optimizer(
            "loss", "sgd", lr=1e-4, master_weights=master, ema=0.9
        )
        before = program.params["fc.w"]
        for batch in batches("bf16", 60):
            program.run("loss_step", batch)
        changed[master] = int((program.params["fc.w"] != before).sum())
        assert ("fc.w.master" in program.params) == master
        assert program.params["fc.w.ema"].dtype == np.float32
    assert changed[False] < 0.5 * changed[True]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_weight_that_is_set_is_the_new_exact_weight(dtype):
    program = opstep.loads(LOSS.format(dtype=dtype)).with_optimizer("loss", "sgd", lr=0.0)
    (batch,) = batches(dtype, 1)
    program.run("loss_step", batch)
    chosen = np.full((4, 6), 0.125, TYPES[dtype][0])
    program.params["fc.w"] = chosen
    program.run("loss_step", batch)
    np.testing.assert_array_equal(program.params["fc.w"], chosen)
    np.testing.assert_array_equal(program.params["fc.w.master"], wide(chosen))


def test_a_scaled_loss_as_pytorch_scales_it():
    """A scale that is too large at first, falls, and grows again after some good steps."""
    scale = optim.LossScale(initial=2.0**30, interval=5)
    program = opstep.loads(LOSS.format(dtype="f16")).with_optimizer(
        "loss", optim.SGD(0.05, 0.9), loss_scale=scale
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=5)
    other = Reference(program, "f16", lambda ts: torch.optim.SGD(ts, 0.05, momentum=0.9), scaler)
    for batch in batches("f16", 60):
        loss = program.run("loss_step", batch)["l"]
        assert loss == pytest.approx(other.step(batch), rel=5e-3)
        assert program.params["loss.scale"] == scaler.get_scale()
    exact = program.params["fc.w.master"]
    np.testing.assert_allclose(exact, other.w.detach().numpy(), rtol=5e-3, atol=1e-3)
    assert 0 < program.params["step"] < 60


@pytest.mark.parametrize("options", [{}, {"clip_value": 1.0}, {"clip_norm": 1.0}])
def test_a_step_whose_gradient_is_infinite_changes_only_the_scale(options):
    program = opstep.loads(LOSS.format(dtype="f16")).with_optimizer(
        "loss", "adamw", loss_scale=optim.LossScale(initial=256.0), ema=0.9, **options
    )
    good, bad = batches("f16", 2)
    program.run("loss_step", good)
    before = dict(program.params)
    bad["y"][3, 1] = np.inf
    program.run("loss_step", bad)
    for name, value in program.params.items():
        if name == "loss.scale":
            assert value == 128.0
        elif name == "loss.scale.good":
            assert (before[name], value) == (1, 0)
        else:
            assert value.tobytes() == before[name].tobytes(), name


def test_a_scale_that_falls_to_nothing_is_told():
    program = opstep.loads(LOSS.format(dtype="f16")).with_optimizer(
        "loss", "sgd", loss_scale="dynamic"
    )
    (bad,) = batches("f16", 1)
    bad["y"][0, 0] = np.nan
    with pytest.raises(opstep.OpstepError, match="however small the loss is scaled"):
        program.run("loss_step", bad, steps=100)
    assert program.params["loss.scale"] == 2.0**-14


def test_the_loss_of_f16_itself_is_scaled_in_f32():
    text = """
param w: f16[3] = full(value=0.001)
graph loss(x: f16[3]) -> f16[], f16[3] {
  y = mul(w, x)
  l = sum(y)
  return l, y
}
"""
    program = opstep.loads(text).with_optimizer("loss", "sgd", lr=1.0, loss_scale="dynamic")
    small = np.full(3, 6e-8, np.float16)  # the smallest there is
    for _ in range(4):  # 65536 does not fit f16
        result = program.run("loss_step", {"x": small})
    assert result.outputs[0].dtype == np.float16 and len(result.outputs) == 2
    assert program.params["loss.scale"] == 2.0**15 and program.params["step"] == 3
    np.testing.assert_allclose(
        program.params["w.master"], np.float32(np.float16(0.001)) - 3 * np.float32(small), rtol=1e-6
    )
