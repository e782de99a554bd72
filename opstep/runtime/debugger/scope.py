"""Tensors that names mean at a stop: one, or the whole of those that ranks have parts of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from opstep.runtime.debugger.activation import Node
from opstep.runtime.debugger.executor import Executor
from opstep.runtime.debugger.frames import Frame
from opstep.runtime.debugger.history import History
from opstep.runtime.debugger.python.lines import PythonFrame
from opstep.runtime.expressions.errors import ExpressionError
from opstep.runtime.expressions.protocols import OfOneRank
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import TensorType, i32
from opstep.runtime.statistics import Statistics, together

MOST_LOADED = 1 << 29  # bytes of an array that an expression reads from a file
RANK = TensorType(i32, ())  # of the number of a rank, which expressions call `rank`


class Handle:
    """One tensor, of which nothing is copied before somebody asks."""

    __slots__ = ("executor", "node", "whose")

    def __init__(self, executor: Executor, node: Node):
        self.executor = executor
        self.node = node
        self.whose = ""  # after its type: " on rank 1"

    @property
    def type(self) -> TensorType:
        return self.node.type

    @property
    def nodes(self) -> list[Node]:
        return [self.node]

    def array(self) -> np.ndarray:
        return self.executor.array(self.node)

    def statistics(self) -> Statistics:
        return self.executor.statistics(self.node)

    def part(self, index: tuple[int | slice, ...]) -> np.ndarray:
        """``x[index]``; copies one range of elements, as short as the leading indices allow.
        Raises `IndexError`.
        """
        shape: Any = self.node.type.shape
        if len(index) > len(shape):
            raise IndexError(f"{len(index)} indices for a tensor of {len(shape)} dims")
        first, left = 0, 0
        for axis, at in enumerate(index):
            if not isinstance(at, int):
                break
            size = shape[axis]
            if not -size <= at < size:
                raise IndexError(f"index {at} is out of range: axis {axis} has {size} elements")
            first += (at % size) * prod(shape[axis + 1 :])
            left = axis + 1
        rest = tuple(index[left:])
        if left == len(shape):
            return self.executor.part(self.node, first, 1).reshape(())
        span, inner = (0, shape[left]), prod(shape[left + 1 :])
        if rest and isinstance(rest[0], slice):
            places = range(*rest[0].indices(shape[left]))
            if not len(places):
                return np.empty(shape[left:], self.node.type.dtype.numpy)[rest]
            low, high = min(places[0], places[-1]), max(places[0], places[-1]) + 1
            span, rest = (low, high), (shifted(places, low), *rest[1:])
        count = (span[1] - span[0]) * inner
        if not count:
            return np.empty(shape[left:], self.node.type.dtype.numpy)[rest]
        found = self.executor.part(self.node, first + span[0] * inner, count)
        return found.reshape(span[1] - span[0], *shape[left + 1 :])[rest]


class Whole:
    """``w`` of ``param w: f32[8, 6] over model``, put together when somebody asks. `parts`: of
    `members`, the ranks of a group, in order.
    """

    __slots__ = ("members", "parts", "shard")

    def __init__(self, shard: Shard, members: Sequence[int], parts: Sequence[Handle]):
        self.shard = shard
        self.members = members
        self.parts = parts

    @property
    def type(self) -> TensorType:
        return self.shard.whole

    @property
    def nodes(self) -> list[Node]:
        return [part.node for part in self.parts]

    @property
    def whose(self) -> str:
        """After its type."""
        return f" over {' and '.join(self.shard.group.axes)}"

    def array(self) -> np.ndarray:
        return np.concatenate([part.array() for part in self.parts], self.shard.axis)

    def statistics(self) -> Statistics:
        return together([part.statistics() for part in self.parts])

    def part(self, index: tuple[int | slice, ...]) -> np.ndarray:
        """``x[index]``, of those ranks that have some of it. Raises `IndexError`."""
        axis, extents = self.shard.axis, self.shard.type.shape
        size: Any = self.type.shape[axis]
        extent: Any = extents[axis]
        if len(index) > len(extents):
            raise IndexError(f"{len(index)} indices for a tensor of {len(extents)} dims")
        index = (*index, *[slice(None)] * (axis + 1 - len(index)))
        before, at, behind = index[:axis], index[axis], index[axis + 1 :]
        if isinstance(at, int):
            if not -size <= at < size:
                raise IndexError(f"index {at} is out of range: axis {axis} has {size} elements")
            k, own = divmod(at % size, extent)
            return self.parts[k].part((*before, own, *behind))
        places = range(*at.indices(size))
        ends = sorted((places[0], places[-1])) if places else (0, 0)
        first, last = (end // extent if extent else 0 for end in ends)
        cut = [part.part((*before, slice(None), *behind)) for part in self.parts[first : last + 1]]
        found = np.concatenate(cut, kept := sum(isinstance(i, slice) for i in before))
        own = shifted(places, first * extent) if places else slice(0)
        return found[(*[slice(None)] * kept, own)]


def shifted(places: range, low: int) -> slice:
    """The slice that takes the same places from the part that begins at `low`."""
    stop = places.stop - low
    return slice(places.start - low, None if stop < 0 else stop, places.step)


def are_of_one_time(name: str, histories: Sequence[History], nodes: Sequence[Node]) -> bool:
    """Whether versions of a named tensor, one of each rank, are those of the same update: ranks
    stand at one place, or have had theirs at one.
    """
    if len({history.location() for history in histories}) == 1:
        return True
    pairs = zip(histories, nodes, strict=True)
    updates = {history.updated_at(name, node) for history, node in pairs}
    return len(updates) == 1 and None not in updates


class FrameScope(OfOneRank):
    """The names of a frame, at its position. `files`: the folder that ``load`` may read below."""

    def __init__(
        self,
        frame: Frame,
        extra: dict[str, Node] | None = None,
        files: Path | None = None,
        runs: Callable[[str, int | None], Any] | None = None,
        back: int = 0,
    ):
        self.frame = frame
        self.extra = extra or {}
        self.files = files
        self.runs = runs
        self.back = back  # versions
        self.steps = 0  # away from where it stands
        self.parts = False  # whether names mean what this rank has, of what is shared out
        self.elsewhere = False  # a rank that is in another graph: of that no values are meant
        self.variables: dict[str, str | None] = {}  # of Python: what they are called here

    def value_name(self, name: str) -> str | None:
        """The value that a name means: of a variable of Python its latest value, of an attribute of
        `self` the named tensor. None for a variable of which the value is not known.
        """
        python = self.frame.python
        if python is not None and name.startswith("self."):
            return self._attribute(name.removeprefix("self."), python) or name
        return self.variables.get(name, name)

    def _attribute(self, name: str, python: PythonFrame) -> str | None:
        """A named tensor; or, of a model that PyTorch compiles, an input of the graph."""
        full = f"{python.module}.{name}" if python.module else name
        if full in self.frame.machine.host.tensors:
            return full
        given = f"{python.within}.{name}" if python.within else name
        given = given.replace(".", "_")
        arguments = [a for line in python.origin.lines if (f := line.function) for a in f.arguments]
        inputs = {b.name.text for b in self.frame.graph.inputs}
        return given if given in inputs and given not in arguments else None

    def ranks(self, axes: Sequence[str]) -> Sequence[int]:
        """The ranks of this one's group along axes of the mesh. Raises `ExpressionError`."""
        door = self.frame.machine.door
        return super().ranks(axes) if door is None else door.members(axes)

    def on_rank(self, rank: int) -> FrameScope:
        """The same names where another rank stands; if that is in another graph, those of named
        tensors. Raises `ExpressionError`.
        """
        door = self.frame.machine.door
        if door is None:
            return super().on_rank(rank)
        frame = door.frame_of(rank, self.frame)
        found = FrameScope(frame, None, self.files, self.runs, self.back)
        found.elsewhere = frame.graph is not self.frame.graph
        there = found.relative(self.steps) if self.steps else found
        if there is None:
            raise ExpressionError(f"rank {rank} has no such step")
        there.parts = True
        return there

    def own(self) -> FrameScope:
        found = copy(self)
        found.parts = True
        return found

    def shard(self, name: str) -> Shard | None:
        name = self.value_name(name) or name
        return self.frame.machine.host.shards.get(name) if self.frame.value(name) is None else None

    def lookup(self, name: str) -> Handle | Whole | None:
        """A tensor; of one that ranks have parts of the whole. Raises `ExpressionError` where the
        parts are of different times.
        """
        door = self.frame.machine.door
        shard = None if door is None or self.parts else self.shard(name)
        if shard is None or door is None:
            return self._own(name)
        known = self.value_name(name) or name
        members = shard.group.members(door.rank)
        scopes = [self.on_rank(member) for member in members]
        parts = [found for scope in scopes if (found := scope._own(known)) is not None]
        if len(parts) < len(scopes):
            return None
        histories = [scope.frame.machine.history for scope in scopes]
        if not are_of_one_time(known, histories, [part.node for part in parts]):
            there = next(m for m in members if m != door.rank)
            raise ExpressionError(
                f"ranks are between different updates of {name}",
                hint=f"shard({name}) is what rank {door.rank} has of it, "
                f"{name}@{there} is rank {there}'s",
            )
        return Whole(shard, members, parts)

    def _own(self, name: str) -> Handle | None:
        machine = self.frame.machine
        if self.elsewhere and name not in machine.host.tensors:
            return None
        found = self._lookup(name)
        if found is None and name == "rank" and machine.door is not None:
            return Handle(machine.executor, machine.executor.constant(RANK, machine.door.rank))
        return found

    def _lookup(self, name: str) -> Handle | None:
        node, known = None if self.back else self.extra.get(name), self.value_name(name)
        if node is None and known is not None:
            name = known
            node = self.frame.earlier(name, self.back) if self.back else self.frame.lookup(name)
        return None if node is None else Handle(self.frame.machine.executor, node)

    def hint(self, name: str) -> str:
        """Why a name means nothing."""
        if self.elsewhere:
            return f"that rank is in graph {self.frame.graph.name.text}"
        is_known = name in self.variables and self.variables[name] is None
        return "a name of Python whose value is not known here" if is_known else ""

    def names(self) -> list[str]:
        known = [name for name, value in self.variables.items() if value is not None]
        return list(dict.fromkeys([*self.extra, *known, *self.frame.names(), *self.frame.params()]))

    def relative(self, steps: int) -> FrameScope | None:
        """The same graph so many steps of the run, or turns of its loop, away."""
        machine, here = self.frame.machine, self.frame.activation
        if here.turn + steps < 0:
            return None
        for activation in _before(machine, here) if steps < 0 else _activations(machine):
            same = activation.points is here.points and activation.parent is here.parent
            if same and activation.role == here.role and activation.turn == here.turn + steps:
                frame = self.frame._replace(
                    activation=activation, position=machine.history.frontier
                )
                there = FrameScope(frame, None, self.files, self.runs, self.back)
                there.variables = self.variables
                found = {name: there._own(node.name) for name, node in self.extra.items()}
                there.extra = {name: h.node for name, h in found.items() if h is not None}
                there.steps, there.parts = self.steps + steps, self.parts
                return there
        return None

    def changed(self, changes: int) -> FrameScope:
        """The same names, each before its last changes."""
        found = copy(self)
        found.back += changes
        return found

    def run(self, key: str, step: int | None = None) -> Any:
        """The tensors of a run in the workspace."""
        return None if self.runs is None else self.runs(key, step)

    def load(self, path: str) -> np.ndarray:
        """An array from a file below the folder of the session. Raises `InputError`."""
        from opstep.runtime.arrays import load, split_key

        if self.files is None:
            raise InputError("no files can be loaded here")
        root = self.files.resolve()
        file, key = split_key(path)
        location = (root / file).resolve()
        if not location.is_relative_to(root):
            raise InputError(f"{path} is not below {root}", hint="only files below it are read")
        return load(f"{location}:{key}" if key else str(location), MOST_LOADED)


def shown(frame: Frame, name: str) -> Handle | Whole | None:
    """The tensor under a name of a graph: the whole of what ranks have parts of; where these are
    of different times what this rank has.
    """
    scope = FrameScope(frame)
    try:
        return scope.lookup(name)
    except ExpressionError:
        part = scope.own()._own(name)
        if part is not None and frame.machine.door is not None:
            part.whose = f" on rank {frame.machine.door.rank}"
        return part


def _activations(machine):
    """Those that are remembered, newest first, each once."""
    last = None
    for activation, _ in reversed(machine.history.log):
        if activation is not last:
            last = activation
            yield activation


def _before(machine, location):
    """Those that ended before one began, newest first: each is passed over in one go."""
    at = location.start - machine.history.base - 1
    while at >= 0:
        activation, _ = machine.history.log[at]
        yield activation
        at = activation.start - machine.history.base - 1
