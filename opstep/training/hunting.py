"""A hunt for NaNs and infinities in a run of training."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from opstep.hunting.stepwise import StepwiseHunt
from opstep.runtime.ir.graph import Apply, Name, Return
from opstep.runtime.nan.kinds import KINDS
from opstep.training.data import Stream
from opstep.training.watched import figures_of

if TYPE_CHECKING:
    import numpy as np

    from opstep.training.data import Rows
    from opstep.training.loop import Metrics, Outcome, Trainer


class TrainingHunt:
    """An observer under which each step raises flags. The first bad step ends the run as
    `Diverged`, which has the report; params and states are those before that step. Results that the
    step itself tests for being finite do not count. `kinds`: as of `hunt`. Of several ranks all end
    at the step that is bad on one.
    """

    def __init__(self, kinds: Collection[str] | str = KINDS):
        self.kinds = kinds
        self._trainer: Trainer | None = None
        self._hunt: StepwiseHunt | None = None

    def began(self, trainer: Trainer) -> None:
        self._trainer, self._hunt = trainer, None
        trainer.execute = self._execute

    def _execute(self, batch: Rows) -> Mapping[str, np.ndarray]:
        trainer = self._trainer
        assert trainer is not None
        if self._hunt is None or self._hunt.program is not trainer.program:
            self._hunt = self._new_hunt(trainer)
        batches, at = trainer.batches, trainer.position
        rows = None if isinstance(batches, Stream) else batches.rows(at).tolist()
        result = self._hunt.step(batch, trainer.step, trainer.count, rows)
        return dict(zip(result.names, result.outputs, strict=True))

    def _new_hunt(self, trainer: Trainer) -> StepwiseHunt:
        program, graph = trainer.program, trainer.graph
        body = program.graphs[graph].body
        (returned,) = (s for s in body if isinstance(s, Return))
        ignored = {*figures_of(v.text for v in returned.values)}
        for s in body:  # such as the norm of gradients, where a step skips those of a scaled loss
            if isinstance(s, Apply) and s.callee.text == "isfinite":
                ignored.update(o.text for o in s.operands if isinstance(o, Name))
        found = StepwiseHunt(program, graph, trainer.settings.run, self.kinds, ignored)
        found.hunter.any_of_us = trainer.ask_others or bool
        return found

    def stepped(self, trainer: Trainer, metrics: Metrics) -> None:
        pass

    def validated(self, trainer: Trainer, metrics: Metrics) -> None:
        pass

    def ended(self, trainer: Trainer, outcome: Outcome) -> None:
        pass
