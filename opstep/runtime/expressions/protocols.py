"""What an expression is evaluated in: scopes, and tensors by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from opstep.runtime.expressions.errors import ExpressionError
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import TensorType
from opstep.runtime.statistics import Statistics


class Handle(Protocol):
    """A tensor of which nothing is copied before somebody asks."""

    @property
    def type(self) -> TensorType: ...

    def array(self) -> np.ndarray:
        """All elements; not to be written to."""
        ...

    def part(self, index: tuple[int | slice, ...]) -> np.ndarray:
        """``x[index]``. Raises `IndexError`."""
        ...

    def statistics(self) -> Statistics: ...


class Scope(Protocol):
    """What names mean somewhere."""

    def lookup(self, name: str) -> Handle | None: ...

    def names(self) -> list[str]: ...

    def hint(self, name: str) -> str:
        """Why a name means nothing here, if that is known; else ""."""
        ...

    def relative(self, steps: int) -> Scope | None:
        """The same names some steps away: -1 is the step before."""
        ...

    def changed(self, changes: int) -> Scope:
        """The same names before they were last changed, each so many times; those that were not
        mean nothing there.
        """
        ...

    def run(self, key: str, step: int | None) -> Scope | None:
        """The tensors of a run in a workspace; of its last step where none is given."""
        ...

    def load(self, path: str) -> np.ndarray:
        """An array from a file. Raises `OpstepError`."""
        ...

    def ranks(self, axes: Sequence[str]) -> Sequence[int]:
        """The ranks of this one's group along axes of the mesh; along all without any."""
        ...

    def on_rank(self, rank: int) -> Scope:
        """The same names where another rank stands. Raises `ExpressionError`."""
        ...

    def own(self) -> Scope:
        """The same names as what this rank has: of what ranks have parts of its own."""
        ...

    def shard(self, name: str) -> Shard | None:
        """How a named tensor is shared out that ranks have parts of."""
        ...


class OfOneRank:
    """What scopes of a run have that is one process, and that know no hints."""

    def hint(self, name: str) -> str:
        return ""

    def ranks(self, axes: Sequence[str]) -> Sequence[int]:
        if axes:
            raise ExpressionError("one rank is debugged, which has no groups")
        return (0,)

    def on_rank(self, rank: int) -> Any:
        if rank:
            hint = f"write @-{rank} for {rank} steps ago"
            raise ExpressionError("there is one rank; steps are counted from here", hint=hint)
        return self

    def own(self) -> Any:
        return self

    def shard(self, name: str) -> Shard | None:
        return None


class Nowhere(OfOneRank):
    """A scope without names: literals can be evaluated in it."""

    def lookup(self, name: str) -> Any:
        return None

    def names(self) -> list[str]:
        return []

    def relative(self, steps: int) -> Any:
        return None

    def changed(self, changes: int) -> Any:
        return self

    def run(self, key: str, step: int | None) -> Any:
        return None

    def load(self, path: str) -> np.ndarray:
        raise FileNotFoundError(path)
