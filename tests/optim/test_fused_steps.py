"""Steps of training whose elementwise ops share launches: the bits of one launch for each op."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opstep
from opstep import optim
from opstep.runtime.plan import fusing
from opstep.runtime.plan.hazards import check
from tests.kernels.pointwise.fused_programs import bits, simulated

# Params of several types and ranks; what overflows in f16 has gradients that are not finite.
TEXT = """
param narrow: f16[4, 6] = normal(std=0.5)
param short: bf16[5] = normal(std=0.5)
param plain: f32[3, 7] = normal(std=0.5)
param exact: f64[2, 2] = normal(std=0.5)
param one: f32[] = 0.5

graph loss(x: f16[N, 6], y: f32[N, 7]) -> f32[] {
  a = matmul(x, narrow, transpose_b=true)
  b = cast(a, dtype=f32)
  c = tanh(b)
  s = sum(short)
  t = cast(s, dtype=f32)
  d = mul(c, t)
  e = slice(d, starts=[0], ends=[3], axes=[1])
  f = matmul(e, plain)
  g = sum(exact)
  h = cast(g, dtype=f32)
  i = mul(f, h)
  j = add(i, one)
  l = mse_loss(j, y)
  return l
}
"""
KINDS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "nesterov": True},
    "rmsprop": {"centered": True, "momentum": 0.5},
    "adam": {},
    "adamw": {"weight_decay": {"plain": 0.1, "*": 0.0}},
    "lion": {"weight_decay": 0.1},
    "adafactor": {},
}
RECIPES = st.fixed_dictionaries(
    {},
    optional={
        "ema": st.sampled_from([0.0, 0.9]),
        "loss_scale": st.sampled_from([2.0**8, 2.0**24]),
        "master_weights": st.just(False),
        "clip": st.sampled_from([{"clip_norm": 0.1}, {"clip_value": 0.01}]),
    },
)
WAYS: list[dict[str, Any]] = [{"sync": "op"}, {}, {"streams": 1}, {"streams": 3, "threads": 2}]


@pytest.fixture(autouse=True)
def every_group(monkeypatch):
    """Groups of any size are worth a kernel."""
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)


def stepped(kind: str, recipe: dict[str, Any]) -> opstep.Program:
    options: dict[str, Any] = dict(recipe)
    options |= options.pop("clip", {})
    if "loss_scale" in options:
        options["loss_scale"] = optim.LossScale(options["loss_scale"], interval=2)
    return opstep.loads(TEXT).with_optimizer("loss", kind, lr=0.05, **KINDS[kind], **options)


def batches(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    xs, ys = rng.standard_normal((count, 8, 6)), rng.standard_normal((count, 8, 7), np.float32)
    found = [{"x": x.astype("f2"), "y": y} for x, y in zip(xs, ys, strict=True)]
    found[1]["x"][2, 3] = 3e4
    return found


def named(program: opstep.Program) -> dict:
    return {name: bits(np.asarray(value)) for name, value in program.params.items()}


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(kind=st.sampled_from(list(KINDS)), recipe=RECIPES)
def test_several_steps_have_the_same_bits(kind, recipe):
    left = []
    for way in WAYS:
        program = stepped(kind, recipe)
        losses = [bits(program.run("loss_step", b, **way).outputs[0]) for b in batches(4)]
        left.append((losses, named(program)))
    assert all(found == left[0] for found in left[1:])
    plans = program.plans("loss_step", symbols={"N": 8}, fuse=True)
    assert not any(check(plan) for plan in plans)
    updates = [s for p in plans for s in p.steps if "update" in [m.op.name for m in s.members]]
    assert updates


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "rmsprop"])
def test_a_step_on_cuda_has_the_same_bits_in_the_simulator(kind):
    program = stepped(kind, {"ema": 0.9, "clip": {"clip_norm": 0.1}})
    (batch,) = batches(2)[:1]
    tensors = {name: np.ascontiguousarray(a) for name, a in program.params.items()}
    with np.errstate(all="ignore"):
        alone, joined = (
            simulated(program.plan("loss_step", symbols={"N": 8}, fuse=f), batch, tensors)
            for f in (False, True)
        )
    assert joined == alone


def test_runs_that_hunt_and_runs_that_go_on_have_the_same_bits(tmp_path):
    rng = np.random.default_rng(0)
    data = {
        "x": rng.standard_normal((48, 6)).astype("f2"),
        "y": rng.standard_normal((48, 7), np.float32),
    }
    how: dict[str, Any] = {"optimizer": "adamw", "lr": 0.01, "ema": 0.9}
    how["loss_scale"] = optim.LossScale(2.0**30)  # too large: the first steps change nothing else

    def trained(epochs: int, **options: Any) -> dict:
        trainer = opstep.train(opstep.loads(TEXT), data, epochs=epochs, batch=8, **how, **options)
        assert trainer.outcome and trainer.outcome.kind == "finished"
        return named(trainer.program)

    plain = trained(2)
    assert trained(2, hunt=True) == plain
    journal = tmp_path / "runs.db"
    trained(1, workspace=journal)
    assert trained(2, workspace=journal, resume="last") == plain
    assert trained(2, workspace=journal, resume="last@6", hunt=True) == plain
