"""The versions of named tensors in a run: one for each update, from a position on."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any, Protocol

from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.node import Node
from opstep.runtime.device.protocols import Memory
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.internal import STATUS

RUN_STATUS = ""  # the name of the run's status among them


class TensorSource(Protocol):
    """Where named tensors come from."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The program's, by name: each with its `type`."""
        ...

    @property
    def shards(self) -> Mapping[str, Shard]:
        """How those are shared out that ranks have parts of."""
        ...

    def tensor(self, name: str) -> tuple[TensorType, Memory]:
        """A named tensor as it is before the run: its type and its memory on the device."""
        ...


class TensorVersions:
    """Of one run. `no_failure` is the version of its status that says that no assert has failed."""

    def __init__(self, source: TensorSource, executor: Executor):
        self.source = source
        self.no_failure = executor.new_node(STATUS, 0, "status")
        self._versions: dict[str, list[tuple[int, Node]]] = {}  # the position from which on each is

    def of(self, name: str) -> list[tuple[int, Node]]:
        """All that are remembered of a tensor, oldest first."""
        versions = self._versions.get(name)
        if versions is None:
            t, memory = self.source.tensor(name)
            versions = self._versions[name] = [(0, Node(t, name, memory))]
        return versions

    def items(self) -> Iterator[tuple[str, list[tuple[int, Node]]]]:
        """The named tensors that the run has asked for, without its status."""
        return ((name, versions) for name, versions in self._versions.items() if name != RUN_STATUS)

    def nodes(self) -> list[Node]:
        return [node for versions in self._versions.values() for _, node in versions]

    def at(self, name: str, position: int) -> Node:
        versions = self.of(name)
        later = bisect.bisect_right(versions, position, key=itemgetter(0))
        return versions[max(later - 1, 0)][1]

    def before(self, name: str, position: int, changes: int) -> Node | None:
        """A tensor as it was so many changes before a position; None if it was not yet."""
        versions = self.of(name)
        at = bisect.bisect_right(versions, position, key=itemgetter(0)) - 1 - changes
        return versions[at][1] if at >= 0 else None

    def add(self, name: str, position: int, node: Node) -> None:
        self.of(name).append((position, node))

    def begin_step(self, position: int) -> None:
        """A step begins: no assert of it has failed."""
        self._versions[RUN_STATUS] = [(position, self.no_failure)]

    def clear(self, position: int) -> None:
        """Others have run meanwhile: all are as the source has them."""
        self._versions.clear()
        self.begin_step(position)

    def cut(self, position: int) -> None:
        """Forgets those from behind a position."""
        for name, versions in self._versions.items():
            self._versions[name] = [v for v in versions if v[0] <= position] or versions[:1]

    def forget_before(self, position: int) -> list[Node]:
        """Nobody goes back behind a position any more. Gives the oldest of each that is left."""
        for name, versions in self._versions.items():
            old = [v for v in versions if v[0] <= position]
            self._versions[name] = old[-1:] + [v for v in versions if v[0] > position]
        return [versions[0][1] for versions in self._versions.values()]

    def replace_source(self, source: TensorSource) -> bool:
        """The program is another one. Tensors that it has not, or has with another type, are no
        more; whether there were such.
        """
        self.source = source
        dropped = [
            name
            for name, versions in self.items()
            if name not in source.tensors or source.tensors[name].type != versions[0][1].type
        ]
        for name in dropped:
            del self._versions[name]
        return bool(dropped)
