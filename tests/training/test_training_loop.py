"""The loop of training: order of batches, observers, and an end at a step."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import opstep
from opstep.training.data import Batches, Dataset, Position
from opstep.training.loop import Settings
from opstep.training.train import prepare

LINE = """
param w: f32[1, 3] = zeros()

graph loss(x: f32[N, 3], y: f32[N, 1]) -> f32[] {
  p = linear(x, w)
  d = sub(p, y)
  s = square(d)
  l = mean(s)
  return l
}
"""


def data(n: int = 10) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    return {"x": x, "y": x @ np.float32([[1], [2], [3]])}


def trainer(observers=(), **settings):
    program = opstep.loads(LINE)
    given = Settings(**{"epochs": 2, "batch": 4, **settings})
    return prepare(program, data(), given, optimizer="sgd", observers=observers)


def test_the_order_depends_on_seed_and_epoch_alone():
    dataset = Dataset({"row": np.arange(10)})

    def rows(seed, *positions):
        batches = Batches(dataset, 4, seed)
        return [b["row"].tolist() for p in positions for _, b in batches.rest(p)]

    whole = rows(1, Position(0), Position(1))
    assert [len(batch) for batch in whole] == [4, 4, 2] * 2
    assert sorted(r for b in whole[:3] for r in b) == list(range(10))
    assert sorted(r for b in whole[3:] for r in b) == list(range(10))
    assert whole[:3] != whole[3:]
    assert rows(1, Position(1, 1)) == whole[4:]
    assert rows(2, Position(0)) != whole[:3]
    assert rows(None, Position(0)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_position_leads_to_the_next():
    batches = Batches(Dataset({"row": np.arange(10)}), 4, drop_last=True)
    assert batches.per_epoch == 2
    assert [after for after, _ in batches.rest(Position())] == [Position(0, 1), Position(1)]


class Noted:
    """An observer that notes what it is told, and may do something after a step."""

    def __init__(self, after=lambda trainer: None):
        self.told = []
        self.after = after

    def began(self, trainer):
        self.told.append("began")

    def stepped(self, trainer, metrics):
        self.told.append((trainer.step, trainer.position, sorted(metrics)))
        self.after(trainer)

    def validated(self, trainer, metrics):
        self.told.append("validated")

    def ended(self, trainer, outcome):
        self.told.append((outcome.kind, outcome.steps))


def test_observers_are_told_of_each_step():
    noted = Noted()
    outcome = trainer([noted]).run()
    assert (outcome.kind, outcome.steps, outcome.error) == ("finished", 6, None)
    assert noted.told[:3] == [
        "began",
        (1, Position(0, 1), ["loss"]),
        (2, Position(0, 2), ["loss"]),
    ]
    assert noted.told[-1] == ("finished", 6)
    assert len(noted.told) == 8


def test_ctrl_c_ends_at_a_step():
    def press(trainer):
        if trainer.step == 4:
            signal.raise_signal(signal.SIGINT)

    noted = Noted(press)
    stopped = trainer([noted])
    outcome = stopped.run()
    assert (outcome.kind, outcome.steps) == ("interrupted", 4)
    assert noted.told[-1] == ("interrupted", 4)
    assert stopped.program.params["step"] == 4


def test_ctrl_c_while_another_rank_was_interrupted():
    """All ranks are, one after another, and it may come while they tell each other."""

    def ask(came: bool) -> bool:
        signal.raise_signal(signal.SIGINT)
        return True

    stopped = trainer()
    stopped.ask_others = ask
    outcome = stopped.run()
    assert (outcome.kind, outcome.steps) == ("interrupted", 1)
    assert isinstance(outcome.error, KeyboardInterrupt)


def test_an_observer_that_raises_fails_the_run():
    def fail(trainer):
        raise OSError("no room")

    noted = Noted(fail)
    with pytest.raises(OSError, match="no room"):
        trainer([noted]).run()
    assert noted.told[-1] == ("failed", 1)
