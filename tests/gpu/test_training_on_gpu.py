"""Gradients through control flow, and steps of training, on a GPU beside the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gradient_programs import Writer
from journalled import bits, journalled, trainer

import opstep

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def close(found: list[np.ndarray], expected: list[np.ndarray], rtol: float) -> None:
    for a, b in zip(found, expected, strict=True):
        scale = np.abs(b).max(initial=1e-30)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale)


def outcome(program: opstep.Program, graph: str, inputs: dict, **settings) -> list[np.ndarray]:
    """The results, then the params as the run left them."""
    results = program.run(graph, inputs, **settings).outputs
    return [*results, *(np.array(program.params[n]) for n in program.params)]


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed):
    """Branches, loops and updates, in f64; the same bits however they run."""
    rng = np.random.default_rng(seed)
    inputs = {n: rng.uniform(-1, 1, 3) for n in "xy"}
    text, wrt = Writer(seed).text(), ["x", "y", "w", "v", "s", "t"]
    runs = []
    for settings in ({"device": "cpu"}, {}, {"mode": "debug"}, {"streams": 1, "alloc": "fresh"}):
        program = opstep.loads(text).with_grad("loss", wrt)
        runs.append(outcome(program, "loss_grad", inputs, **{"device": "cuda", **settings}))
    cpu, *others = runs
    close(others[0], cpu, 1e-9)
    for other in others[1:]:
        assert [a.tobytes() for a in other] == [a.tobytes() for a in others[0]]


@pytest.mark.parametrize("turns", [1, 9, 250])
def test_gradient_of_a_recurrent_net(turns):
    """Above 200 turns, halves of the loop are computed again on the way back."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((turns, 5, 8))
    inputs = {"x": x, "label": rng.integers(0, 4, 5).astype(np.int32)}
    text = (EXAMPLES / "recurrent.opg").read_text(encoding="utf-8").replace("f32", "f64")
    text = text.replace("zeros(shape=[N, 16])", "zeros(shape=[N, 16], dtype=f64)")
    program = opstep.loads(text).with_grad("loss", ["x", "step.w", "step.u", "out.w"])
    cpu, cuda = (program.run("loss_grad", inputs, device=d).outputs for d in ("cpu", "cuda"))
    close(cuda, cpu, 1e-9)


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop", "adam", "adamw", "lion", "adafactor"])
def test_steps_of_training(optimizer):
    """Twenty steps; params and states of the optimizer in the end."""
    rng = np.random.default_rng(0)
    text = """
param a.w: f64[16, 8] = normal(std=0.3)
param a.b: f64[16] = zeros()
param b.w: f64[4, 16] = normal(std=0.3)
graph loss(x: f64[N, 8], label: i32[N]) -> f64[] {
  h = linear(x, a.w, a.b)
  r = tanh(h)
  y = linear(r, b.w)
  l = softmax_cross_entropy(y, label)
  return l
}
"""
    batches = [
        {"x": rng.standard_normal((6, 8)), "label": rng.integers(0, 4, 6).astype(np.int32)}
        for _ in range(20)
    ]
    ends = []
    for device in ("cpu", "cuda"):
        program = opstep.loads(text).with_optimizer("loss", optimizer, lr=1e-2, clip_norm=1.0)
        losses = [program.run("loss_step", batch, device=device)["l"] for batch in batches]
        ends.append([np.array(losses), *(np.array(program.params[n]) for n in program.params)])
    close(ends[1], ends[0], 1e-7)


@pytest.mark.parametrize("every", [1, 7])
def test_going_on_from_a_checkpoint(tmp_path, every):
    """With dropout, a schedule and averages, the same bits."""
    whole = trainer(device="cuda")
    whole.run()
    path = tmp_path / "runs.db"
    journalled(path, device="cuda", checkpoint_every=every, keep=None).run()
    for step in (0, 7, 21, 24):
        again = journalled(path, f"1@{step}", device="cuda", checkpoint_every=0)
        again.run()
        assert bits(again.program.params) == bits(whole.program.params), step
