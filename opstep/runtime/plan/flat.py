"""The flattened graph: one list of steps, with concrete types, that has not been scheduled yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from opstep.runtime.ir.effects import is_shared
from opstep.runtime.ir.graph import Graph, Source, Statement
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Frame, Step, Value


@dataclass(slots=True)
class Flat:
    """Steps in program order; values and buffers as columns, with an entry for each id. `commits`:
    see `Plan`.

    ``homes[value]`` is its buffer. A temp buffer belongs to the one step that writes it; a param's
    or the status's is written by each update; one of kind "none" has no bytes. `costs` are
    nanoseconds, one a step.
    """

    graph: str
    names: list[str] = field(default_factory=list)
    types: list[TensorType] = field(default_factory=list)
    homes: list[int] = field(default_factory=list)
    frame_of: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    labels: dict[int, str] = field(default_factory=dict)  # buffer -> name of its tensor
    literals: dict[int, int | float] = field(default_factory=dict)  # buffer -> value of its const
    steps: list[Step] = field(default_factory=list)
    costs: list[int] = field(default_factory=list)
    commits: int = 0
    frames: list[Frame] = field(default_factory=list)
    scopes: list[dict[str, int]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    @property
    def values(self) -> list[Value]:
        """The columns as rows."""
        return rows(Value, self.names, self.types, self.homes, self.frame_of)

    @property
    def talks(self) -> frozenset[int]:
        """The steps that other ranks take part in."""
        return frozenset(k for k, s in enumerate(self.steps) if is_shared(s.op, s.attrs))

    def stored(self, step: Step) -> tuple[TensorType | None, ...]:
        """Types of a step's operands as they are in memory (None: absent), then of its results."""
        types = self.types
        return tuple([None if v is None else types[v] for v in (*step.operands, *step.results)])

    def converts(self, step: Step) -> bool:
        """Whether a step computes with an operand in another type than it has in memory."""
        pairs = zip(step.operands, step.operand_types, strict=True)
        return any(
            v is not None and t is not None and self.types[v].dtype is not t.dtype for v, t in pairs
        )

    def replaced(self, made: Mapping[int, Sequence[tuple[Step, int]]]) -> Flat:
        """The same with other steps, and their costs, in the places of some; results of those that
        none of these stores have no memory.
        """
        first = len(self.steps) - self.commits
        stored = {v for pairs in made.values() for step, _ in pairs for v in step.results}
        kinds = self.kinds.copy()
        found: list[tuple[Step, int]] = []
        commits = 0
        for k, pair in enumerate(zip(self.steps, self.costs, strict=True)):
            now = made.get(k, (pair,))
            found += now
            commits += len(now) if k >= first else 0
            if k in made and not pair[0].op.traits.reinterprets:
                for v in (v for v in pair[0].results if v not in stored):
                    kinds[self.homes[v]] = "none"
        steps, costs = [step for step, _ in found], [cost for _, cost in found]
        return replace(self, steps=steps, costs=costs, kinds=kinds, commits=commits)

    def add_buffer(self, kind: str, nbytes: int) -> int:
        """A new buffer's id."""
        self.kinds.append(kind)
        self.sizes.append(nbytes)
        return len(self.kinds) - 1

    def add_value(self, name: str, t: TensorType, buffer: int, frame: int) -> int:
        """A new value's id."""
        self.names.append(name)
        self.types.append(t)
        self.homes.append(buffer)
        self.frame_of.append(frame)
        return len(self.names) - 1

    def open_frame(
        self, parent: int, graph: Graph, call: Statement | None, types: str = "",
        source: Source | None = None, step: Step | None = None,
    ) -> int:  # fmt: skip
        """A new frame's id."""
        self.frames.append(Frame(parent, graph, call, types, source, step))
        self.scopes.append({})
        return len(self.frames) - 1


def rows(kind, *columns) -> list:
    """Named tuples from columns, past their constructor: this is a hot path."""
    return list(map(tuple.__new__, repeat(kind), zip(*columns, strict=True)))
