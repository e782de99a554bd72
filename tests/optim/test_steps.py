"""What a step does to gradients and beside updates: clipping, schedules, decay by name, averages;
all beside PyTorch.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pushing import SHAPES, gradients, leaves, push, run_beside, text
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
    StepLR,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import opstep
from opstep import optim
from opstep.runtime.ir.printer import print_module

LOSS = text("f64")


class Prepared:
    """An optimizer of PyTorch with something to do before or after each of its steps."""

    def __init__(self, optimizer, before=None, after=None):
        self.optimizer, self.before, self.after = optimizer, before, after

    def step(self):
        if self.before:
            self.before()
        self.optimizer.step()
        if self.after:
            self.after()


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("bound", [1e-3, 1.0, 1e6])
def test_clipping_by_norm(dtype, bound):
    def theirs(tensors):
        clip = lambda: torch.nn.utils.clip_grad_norm_(tensors, bound)  # noqa: E731
        return Prepared(torch.optim.SGD(tensors, 0.1, momentum=0.9), clip)

    run_beside(optim.SGD(0.1, 0.9), theirs, dtype, clip_norm=bound)


@pytest.mark.parametrize("bound", [1e-3, 1.0])
def test_clipping_by_value(bound):
    def theirs(tensors):
        clip = lambda: torch.nn.utils.clip_grad_value_(tensors, bound)  # noqa: E731
        return Prepared(torch.optim.Adam(tensors), clip)

    run_beside("adam", theirs, "f64", clip_value=bound)


def warm(after):
    """PyTorch's way to put a warm-up of 4 steps from 0.02 to 0.1 before another schedule."""

    def make(optimizer) -> LRScheduler:
        rising = LinearLR(optimizer, start_factor=0.2, total_iters=4)
        return SequentialLR(optimizer, [rising, after(optimizer)], [4])

    return make


SCHEDULES = {
    "constant": (optim.Constant(0.1), lambda o: StepLR(o, 1000)),
    "linear": (optim.Linear(0.1, 8, end=0.01), lambda o: LinearLR(o, 1.0, 0.1, 8)),
    "cosine": (
        optim.Cosine(0.1, 8, end=0.01),
        lambda o: Stopped(o, CosineAnnealingLR(o, 8, 0.01), 8),
    ),
    "step": (optim.Step(0.1, 3, 0.5), lambda o: StepLR(o, 3, 0.5)),
    "warm-up": (optim.Constant(0.1, warmup=4, start=0.02), warm(lambda o: StepLR(o, 1000))),
    "warm-up, step": (optim.Step(0.1, 3, warmup=4, start=0.02), warm(lambda o: StepLR(o, 3))),
    "warm-up, linear": (
        optim.Linear(0.1, 12, warmup=4, start=0.02),
        warm(lambda o: LinearLR(o, 1.0, 0.0, 8)),
    ),
    "warm-up, cosine": (
        optim.Cosine(0.1, 30, warmup=4, start=0.02),
        warm(lambda o: CosineAnnealingLR(o, 26)),
    ),
}


class Stopped:
    """PyTorch's cosine rises again after its end; ours stays there."""

    def __init__(self, optimizer, scheduler, steps):
        self.scheduler, self.left = scheduler, steps

    def step(self):
        self.left -= 1
        if self.left >= 0:
            self.scheduler.step()


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    ours, theirs = SCHEDULES[name]

    def scheduled(tensors):
        optimizer = torch.optim.SGD(tensors, 0.1)
        return Prepared(optimizer, after=theirs(optimizer).step)

    run_beside(optim.SGD(ours), scheduled, "f64", 14)


def test_a_warm_up_begins_at_0():
    program = opstep.loads(LOSS)
    step = program.with_optimizer("loss", optim.SGD(optim.Constant(0.1, warmup=2)))
    (batch,) = gradients(1, "f64")
    w, moved = [np.array(program.params["fc.w"])], []
    for _ in range(4):
        step.run("loss_step", batch)
        w.append(step.params["fc.w"])
        moved.append(np.abs(w[-1] - w[-2]).max() / np.abs(batch["x2"]).max())
    np.testing.assert_allclose(moved, [0.0, 0.05, 0.1, 0.1], rtol=1e-9)


LR = """
state lr: f32[] = 0.25

graph halved() -> f64[] {
  t = cast(step, dtype=f64)
  factor = pow(0.5, t)
  rate = mul(factor, 0.1)
  return rate
}

state step: i32[] = 0
"""


def test_a_rate_that_is_a_graph_of_the_program():
    given = opstep.loads(LOSS + LR).with_optimizer("loss", "sgd", lr="halved")
    own = opstep.loads(LOSS).with_optimizer("loss", optim.SGD(optim.Step(0.1, 1, 0.5)))
    for batch in gradients(5, "f64"):
        given.run("loss_step", batch)
        own.run("loss_step", batch)
    np.testing.assert_array_equal(given.params["fc.w"], own.params["fc.w"])
    assert given.params["step"] == 5


def test_a_rate_that_is_a_state():
    program = opstep.loads(LOSS + LR).with_optimizer("loss", "sgd", lr="lr")
    (batch,) = gradients(1, "f64")
    for rate in (0.25, 0.5):
        program.params["lr"] = rate
        before = program.params["fc.w"]
        program.run("loss_step", batch)
        np.testing.assert_array_equal(program.params["fc.w"], before - rate * batch["x2"])


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adafactor"])
def test_decay_by_name(kind):
    def theirs(tensors):
        groups = [
            {"params": [tensors[1]], "weight_decay": 0.0},
            {"params": [tensors[2]], "weight_decay": 0.3},
            {"params": [tensors[0], tensors[3]], "weight_decay": 0.1},
        ]
        return getattr(torch.optim, kind)(groups, lr=0.01)

    decay = {"*.b": 0.0, "fc.*": 0.3, "*": 0.1}
    run_beside(getattr(optim, kind)(0.01, weight_decay=decay), theirs, "f64")


def test_what_no_pattern_fits_does_not_decay():
    decayed = opstep.loads(LOSS).with_optimizer("loss", "adamw", weight_decay={"*.w": 0.5})
    plain = opstep.loads(LOSS).with_optimizer("loss", "adamw", weight_decay=0)
    for batch in gradients(2, "f64"):
        for program in (decayed, plain):
            program.run("loss_step", batch)
    for name in SHAPES:
        same = np.array_equal(decayed.params[name], plain.params[name])
        assert same == (not name.endswith(".w")), name


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("decay", [0.0, 0.9, 0.999])
def test_averages(dtype, decay):
    program = opstep.loads(text(dtype)).with_optimizer("loss", "sgd", lr=0.1, ema=decay)
    tensors = leaves(program)
    model = torch.nn.ParameterDict({n.replace(".", "_"): t for n, t in tensors.items()})
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    other = torch.optim.SGD(model.parameters(), 0.1)
    tolerance = 1e-12 if dtype == "f64" else 1e-6
    for batch in gradients(20, dtype):
        program.run("loss_step", batch)
        push({n: model[n.replace(".", "_")] for n in tensors}, batch)
        other.step()
        averaged.update_parameters(model)
        for name in tensors:
            wanted = averaged.module.get_parameter(name.replace(".", "_")).detach().numpy()
            ours = program.params[f"{name}.ema"]
            np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=10 * tolerance)


def test_the_text_is_a_program_that_does_the_same():
    ours = opstep.loads(LOSS).with_optimizer(
        "loss", optim.AdamW(optim.Cosine(1e-2, 10, warmup=3)), clip_norm=1.0, ema=0.9
    )
    written = opstep.loads(print_module(ours.module))
    assert print_module(written.module) == print_module(ours.module)
    for batch in gradients(3, "f64"):
        for program in (ours, written):
            program.run("loss_step", batch)
    assert list(ours.params) == list(written.params)
    for name in ours.params:
        assert ours.params[name].tobytes() == written.params[name].tobytes(), name


def test_a_program_with_a_step_is_saved_and_goes_on(tmp_path):
    straight = opstep.loads(LOSS).with_optimizer("loss", "adam", clip_norm=1.0)
    batches = gradients(4, "f64")
    for batch in batches[:2]:
        straight.run("loss_step", batch)
    straight.save(tmp_path / "net.opg")
    resumed = opstep.load(tmp_path / "net.opg")
    for batch in batches[2:]:
        straight.run("loss_step", batch)
        resumed.run("loss_step", batch)
    for name in straight.params:
        assert straight.params[name].tobytes() == resumed.params[name].tobytes(), name


def test_the_same_bits_in_every_mode():
    options = [
        {},
        {"mode": "debug"},
        {"streams": 4, "threads": 2},
        {"alloc": "reuse", "fill": "nan"},
    ]
    states = []
    for run in options:
        program = opstep.loads(text("f32")).with_optimizer(
            "loss", optim.Adafactor(optim.Cosine(0.1, 4, warmup=1), weight_decay=0.1),
            clip_norm=1.0, ema=0.9, loss_scale=optim.LossScale(2.0**100, interval=1),
        )  # fmt: skip
        for batch in gradients(4, "f32"):
            result = program.run("loss_step", batch, **run)
            assert result.unwritten == []
        states.append({n: v.tobytes() for n, v in program.params.items()})
    assert all(s == states[0] for s in states[1:])


def test_a_failed_step_changes_nothing():
    broken = LOSS.replace(
        "  return l\n", '  fine = less(l, 100.0)\n  assert fine, "large"\n  return l\n'
    )
    program = opstep.loads(broken).with_optimizer("loss", "adam", ema=0.9)
    program.run("loss_step", {n: 1e-6 * x for n, x in gradients(1, "f64")[0].items()})
    before = {n: v.tobytes() for n, v in program.params.items()}
    with pytest.raises(opstep.OpstepError, match="large"):
        program.run("loss_step", {f"x{k}": 1e6 * program.params[n] for k, n in enumerate(SHAPES)})
    assert {n: v.tobytes() for n, v in program.params.items()} == before


def test_a_hunt_tells_the_line_of_an_update():
    """A rate that is far too large: the params of the update's own graph overflow."""
    program = opstep.loads(text("f32")).with_optimizer("loss", "sgd", lr=1e38)
    found = opstep.hunt(program, "loss_step", gradients(1, "f32", 1e6)[0], steps=2)
    told = found.report()
    assert "infinity born in mul change at sgd_" in told and "called: loss_step" in told
