"""Metrics for TensorBoard: event files, written by its package; TensorFlow is not needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from opstep.runtime.ir.errors import InputError
from opstep.trace.writer import words
from opstep.training.loop import Metrics, Observer, Outcome, Trainer


class TensorBoard(Observer):
    """An observer that writes ``loss``, the other figures of steps and ``validation/loss`` to
    `folder`, where `tensorboard --logdir` shows each folder in it as a run. Steps are numbered as
    in a workspace. Where it cannot be written, training goes on: `say` is told once, and `problem`
    says why. Raises `InputError` where the package is not there.
    """

    def __init__(self, folder: str | Path, say: Callable[[str], Any] = lambda text: None):
        try:
            from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore
            from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            hint = "pip install 'opstep[tensorboard]'"
            raise InputError("tensorboard is not there", hint=hint) from None
        self.problem: str | None = None
        self.folder = Path(folder)
        self._event, self._summary = Event, Summary
        self._say = say
        try:
            self._writer = EventFileWriter(str(folder))
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {words(error)}") from None

    def stepped(self, trainer: Trainer, metrics: Metrics) -> None:
        self._add(trainer.step - 1, metrics)

    def validated(self, trainer: Trainer, metrics: Metrics) -> None:
        self._add(trainer.step - 1, {f"validation/{n}": v for n, v in metrics.items()})

    def ended(self, trainer: Trainer, outcome: Outcome) -> None:
        self._try(self._writer.close)

    def _add(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=n, simple_value=v) for n, v in metrics.items()]
        event = self._event(step=step, wall_time=time.time(), summary=self._summary(value=values))
        if self.problem is None:
            self._try(lambda: self._writer.add_event(event))

    def _try(self, write: Callable[[], Any]) -> None:
        """What its thread raised before is raised here."""
        try:
            write()
        except (OSError, ValueError) as error:  # ValueError: a file that is closed
            if self.problem is None:
                self.problem = words(error)
                self._say(f"{self.folder} could not be written: {self.problem}")
