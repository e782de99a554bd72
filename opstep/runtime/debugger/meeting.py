"""Collectives under the debugger, where all ranks are in one process: what all have that have come
to one is computed for them at once, by the op's meaning (`Collective.together`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from opstep.runtime.debugger.activation import Node, Producer
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.plan.plan import Plan, Step
from opstep.runtime.plan.rank_traces import Talk


class Waiting(OpstepError):
    """A rank is at a collective, and ranks that it waits for are not there."""

    def __init__(self, rank: int, talk: Talk, missing: Sequence[int]):
        names = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        ranks = "rank" if len(missing) == 1 else "ranks"
        super().__init__(f"rank {rank} waits at {talk} for {ranks} {names}")
        self.rank = rank
        self.talk = talk
        self.missing = tuple(missing)


class Meeting:
    """One collective of ranks that are all there, or the number of a rank in its group. `operands`
    and `read`, which gives their
    elements: of its ranks, in their order in the group; `positions`: of each one's point.
    """

    def __init__(
        self, step: Step, positions: dict[int, int], operands: tuple[Node, ...],
        read: Sequence[Callable[[Node], np.ndarray]], sends: int = -1,
    ):  # fmt: skip
        self.step = step
        self.positions = positions
        self.operands = operands
        self.read = read
        self.sends = sends  # of send and recv, which of both sends
        self._left = set(range(len(positions)))  # those who have not had their results
        self._results: Sequence[np.ndarray] | None = None

    def result(self, index: int) -> np.ndarray:
        """What one of them gets. It is kept until all have it."""
        if self._results is None:
            self._results = self._computed(self._arrays())
        found = self._results[index]
        self._left.discard(index)
        if not self._left:
            self._results = None
        return found

    def again(self, index: int, *array: np.ndarray) -> np.ndarray:
        """What that rank would get if it had brought something else."""
        arrays = self._arrays()
        arrays[index : index + len(array)] = array
        return np.array(self._computed(arrays)[index])

    def _arrays(self) -> list[np.ndarray]:
        return [read(o) for read, o in zip(self.read, self.operands, strict=True)]

    def _computed(self, arrays: list[np.ndarray]) -> Sequence[np.ndarray]:
        op: Any = self.step.op
        attrs = self.step.attrs
        if not op.traits.collective:
            return [np.array(k, np.int32) for k in range(attrs["over"].size)]
        if self.sends >= 0:
            return [np.array(arrays[self.sends])] * len(arrays)
        found = op.together(arrays, **attrs)
        own = [any(np.may_share_memory(r, a) for a in arrays) for r in found]
        return [np.array(r) if shared else r for r, shared in zip(found, own, strict=True)]


class MetProducer(Producer):
    """What a rank, the one at `index`, gets of a meeting: computed of what all of them have."""

    __slots__ = ("index", "meeting")

    def __init__(
        self, plan: Plan, step: Step, operands: tuple[Node | None, ...], meeting: Meeting,
        index: int,
    ):  # fmt: skip
        super().__init__(plan, step, operands)
        self.meeting = meeting
        self.index = index

    @property
    def sources(self) -> tuple[Node | None, ...]:
        return self.meeting.operands or self.operands


class Door(Protocol):
    """One rank's door to the others. `rank`: its number."""

    rank: int

    def meet(self, plan: Plan, step: Step, operands: tuple[Node | None, ...]) -> MetProducer:
        """The producer of a collective's result. Raises `Waiting`."""
        ...

    def executors(self) -> Iterable[Any]:
        """Those of all ranks."""
        ...

    def cut(self, position: int) -> None:
        """What this rank did from a position on is forgotten: so is what others did with it. Raises
        `InputError` where they do not remember it.
        """
        ...

    def frame_of(self, rank: int, frame: Any) -> Any:
        """Where another rank stands in the same call of a graph; its innermost frame where it is in
        another one. Raises `ExpressionError` for a rank that there is not.
        """
        ...

    def members(self, axes: Sequence[str]) -> tuple[int, ...]:
        """The ranks of this one's group along axes of the mesh; along all without any. Raises
        `ExpressionError`.
        """
        ...
