"""A run of training with random numbers, a schedule and averages, and what it comes to."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np

import opstep
from opstep import optim
from opstep.training.journal import Journal, checkpoint, resume
from opstep.training.loop import Settings, Trainer
from opstep.training.recorded import RunRecord
from opstep.training.train import prepare

NET = """
param a.w: f32[8, 4] = normal(std=0.5)
param a.b: f32[8] = zeros()
param b.w: f32[3, 8] = normal(std=0.5)
state step: i64[] = 0

graph scores(x: f32[N, 4]) -> f32[N, 3] {
  h = linear(x, a.w, a.b)
  r = tanh(h)
  y = linear(r, b.w)
  return y
}

graph loss(x: f32[N, 4], label: i32[N]) -> f32[] {
  h = linear(x, a.w, a.b)
  r = tanh(h)
  d = dropout(r, step, p=0.4, seed=11)
  y = linear(d, b.w)
  l = softmax_cross_entropy(y, label)
  return l
}
"""
ROWS, BATCH = 44, 8  # the last batch of an epoch has 4 rows


def data(rows: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    return {"x": x, "label": x[:, :3].argmax(1).astype(np.int32)}


def trainer(epochs=4, net=NET, observers=(), freeze=(), rows=ROWS, **settings) -> Trainer:
    optimizer = optim.AdamW(optim.Cosine(0.05, steps=60, warmup=5))
    given = Settings(**{"epochs": epochs, "batch": BATCH, "seed": 3, "keep": 5, **settings})
    return prepare(
        opstep.loads(net, "net.opg"), data(rows), given, graph="loss", optimizer=optimizer,
        options={"ema": 0.9, "freeze": freeze}, observers=observers,
    )  # fmt: skip


def journalled(path: Path, resumed: str | None = None, say=lambda text: None, **settings):
    """A trainer with a journal, which goes on from a checkpoint."""
    made = trainer(**{"checkpoint_every": 5, **settings})
    parent = None if resumed is None else checkpoint(path, resumed)
    if parent is not None:
        resume(made, parent)
    record = RunRecord(path)
    made.observers += [record, Journal(record, parent, say)]
    return made


class Losses:
    """An observer that notes the loss of each step, to the bit."""

    def __init__(self):
        self.noted: dict[int, bytes] = {}

    def began(self, trainer):
        pass

    def stepped(self, trainer, metrics):
        self.noted[trainer.step] = struct.pack("d", metrics["loss"])

    def validated(self, trainer, metrics):
        pass

    def ended(self, trainer, outcome):
        pass


def bits(values) -> dict[str, str]:
    """A digest of each tensor."""
    return {name: hashlib.sha256(values[name].tobytes()).hexdigest() for name in values}
