"""The params of the best validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from opstep.training.loop import Metrics, Observer, Trainer

if TYPE_CHECKING:
    import numpy as np


class Best(Observer):
    """An observer that keeps the params and states of the best validation, to `restore` them when
    the run has ended. Where no validation came, the last ones stay. `before`: those of the run that
    this one goes on with.
    """

    def __init__(self, before: Mapping[str, np.ndarray] | None = None) -> None:
        self._values = dict(before or {})

    def validated(self, trainer: Trainer, metrics: Metrics) -> None:
        if trainer.is_best:
            params = trainer.program.params
            self._values = {name: params[name] for name in params.updated()}

    def restore(self, trainer: Trainer) -> bool:
        """Sets what was kept, if anything was."""
        trainer.program.params.load(self._values, strict=False)
        return bool(self._values)
