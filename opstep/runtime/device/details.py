"""Figures of tensors that a recorder takes beyond statistics: see `protocols.Recorder.details`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opstep.runtime.device.protocols import Device, Own, Recorder, Types
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Step


class Details:
    """Launches on a device. Words of one tensor follow one another, and those of tensors, too."""

    def __init__(self, device: Device, recorder: Recorder):
        self._device = device
        self._steps_of = recorder.details

    def nbytes(self, t: TensorType) -> int:
        """Of the words about such a tensor."""
        return sum(nbytes for _, _, nbytes in self._steps(t))

    def workspace(self, t: TensorType) -> int:
        """Bytes of working memory that the launches for such a tensor need."""
        return max((self._device.prepare(*s[:2])[1] for s in self._steps(t)), default=0)

    def bound(self, t: TensorType, addresses: Sequence[int], workspace: int) -> list[Own]:
        """Launches. `addresses`: of the tensor, of `ENABLED`, and where the words go."""
        source, enabled, target = addresses
        made: list[Own] = []
        for step, types, nbytes in self._steps(t):
            launches, _ = self._device.prepare(step, types)
            made += self._device.bind(launches, [source, enabled, target], workspace)
            target += nbytes
        return made

    def _steps(self, t: TensorType) -> Iterator[tuple[Step, Types, int]]:
        for step, types in self._steps_of(t):
            result: Any = types[-1]
            yield step, types, result.nbytes
