"""The ops of steps of training in a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opstep.trace.recording import Recording
from opstep.training.loop import Metrics, Observer, Outcome, Trainer

if TYPE_CHECKING:
    from opstep.trace.sink import SinkReport


class Timeline(Observer):
    """An observer that has each step recorded, or those of `steps`, counted from the first of this
    run; behind these the run goes on at full speed. `reports`: at the end, what was written.
    """

    def __init__(self, path: str | Path, steps: range | None = None):
        self.recording = Recording(trace=path, trace_steps=steps)
        self.reports: list[SinkReport] = []
        self._left = None if steps is None else steps.stop

    def began(self, trainer: Trainer) -> None:
        trainer.recording = self.recording

    def stepped(self, trainer: Trainer, metrics: Metrics) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                trainer.recording = None

    def ended(self, trainer: Trainer, outcome: Outcome) -> None:
        trainer.recording = None
        self.reports = self.recording.close()
