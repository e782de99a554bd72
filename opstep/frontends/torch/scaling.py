"""`torch.amp.GradScaler`: gradients that are infinite because its scale is too large are what it is
made for. It skips the step, and halves the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from opstep.frontends.torch.outstanding import outstanding

SMALLEST = 1.0  # a scale below it is no longer what makes gradients infinite


class Scaling:
    """Of a script that uses one. What a backward of a scaled loss gives is told of where the step
    is not skipped for it, where a scale below `SMALLEST` does not help, or where no step after it
    is made.
    """

    def __init__(self) -> None:
        self.skipped = 0  # steps
        self.is_scaled = False  # the loss at hand
        self._first: Callable[[], None] | None = None  # tells of the first since a step was made
        self._is_bad = False  # of the step at hand something would be told

    def defer(self, tell: Callable[[], None]) -> bool:
        """Whether `tell` waits for what the scaler does."""
        if self.is_scaled:
            self._first = self._first or tell
            self._is_bad = True
        return self.is_scaled

    def updated(self, before: float, after: float) -> None:
        """The scaler has set its scale, behind a step."""
        is_skipped = after < before
        self.skipped += is_skipped
        is_bad, self._is_bad, self.is_scaled = self._is_bad, False, False
        if (is_bad and not is_skipped) or (is_skipped and after < SMALLEST):
            self.settle()
        if not is_skipped:
            self._first = None

    def settle(self) -> None:
        """Tells of what waits, if anything does."""
        tell, self._first, self.is_scaled = self._first, None, False
        if tell is not None:
            tell()


scaling = Scaling()  # of the process


@contextmanager
def watched() -> Iterator[None]:
    """While the block lasts, it is known which losses are scaled, and which steps are skipped."""
    scaler = torch.amp.GradScaler
    scale, update = scaler.scale, scaler.update
    scaling.__init__()

    @wraps(scale)
    def scaled(self: Any, outputs: Any) -> Any:
        scaling.is_scaled = self.is_enabled()
        return scale(self, outputs)

    @wraps(update)
    def updated(self: Any, new_scale: Any = None) -> None:
        outstanding.settle()  # as long as it is known that the loss was scaled
        before = self.get_scale()
        update(self, new_scale)
        if self.is_enabled():
            scaling.updated(before, self.get_scale())

    scaler.scale, scaler.update = scaled, updated
    try:
        yield
    finally:
        scaler.scale, scaler.update = scale, update
