"""The flattened graph: one list of steps, with concrete types, that has not been scheduled yet.

While it grows, `Versions` keeps which value each named tensor has. A name means the value that it
had when its line was reached, however long it is kept. So where a value is used after its tensor
was updated, it is copied just before that update. Few programs need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from opstep.runtime.ir.graph import Declaration, Graph, Source, Statement
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.cost import estimate
from opstep.runtime.plan.internal import STATUS, assert_, snapshot, update
from opstep.runtime.plan.plan import Frame, Step

_STATUS = ""  # where a tensor's name is wanted: the run's status


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
    def talks(self) -> frozenset[int]:
        """The steps that other ranks take part in."""
        return frozenset(k for k, s in enumerate(self.steps) if s.op.is_shared(s.attrs))

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

    def ordered(self, order: Sequence[int], commits: int) -> Flat:
        """The same with its steps in this order, of which the last `commits` are the commits."""
        steps, costs = [self.steps[k] for k in order], [self.costs[k] for k in order]
        return replace(self, steps=steps, costs=costs, commits=commits)

    def readers(self) -> dict[int, list[int]]:
        """The steps that read each buffer, each once; last `len(steps)` where it holds an output.
        Buffers that nothing reads are left out.
        """
        homes = self.homes
        found: dict[int, list[int]] = {}
        for k, step in enumerate(self.steps):
            for b in {homes[v] for v in step.values_read}:
                found.setdefault(b, []).append(k)
        for b in {homes[v] for v in self.outputs}:
            found.setdefault(b, []).append(len(self.steps))
        return found

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


class Schedule(NamedTuple):
    """The stream of each step, the order of issue, and estimated times in ns."""

    streams: int
    stream: list[int]
    order: Sequence[int]
    start: Sequence[int]
    end: Sequence[int]


def in_one_stream(count: int) -> Schedule:
    """Program order; time is the number of the step."""
    return Schedule(min(count, 1), [0] * count, range(count), range(count), range(1, count + 1))


def nbytes(t: TensorType) -> int:
    """Bytes of a concrete type."""
    size = t.nbytes
    if not isinstance(size, int):
        raise Mismatch(f"{t} has no size before its symbols are bound")
    if any(d < 0 for d in t.shape):  # pyright: ignore[reportOperatorIssue] - numbers, as size is
        raise Mismatch(f"the result would be {t}, and no dim can be negative")
    if not t.fits:
        raise Mismatch(f"a tensor of type {t} does not fit into any memory")
    return size


def has_place(op: type[Op]) -> bool:
    """Whether an op has to run where it is in the order of steps, and only once: control flow, ops
    of other libraries or of several ranks, asserts, updates and copies of old versions.
    """
    traits = op.traits
    outside = traits.host or traits.foreign or traits.collective
    return outside or op in (assert_, update, snapshot)


class Versions:
    """The values of named tensors, and of the run's status, at the step that is added next."""

    def __init__(self, flat: Flat, tensors: Mapping[str, Declaration]):
        self._flat = flat
        self._tensors = tensors
        self._now: dict[str, int] = {}  # name -> value
        self._aliases: dict[int, list[int]] = {}  # buffer -> values of its present version
        self._copies: dict[int, int] = {}  # stale value -> its copy
        self._before: dict[int, list[Step]] = {}  # step -> snapshots to take before it
        self.stale: dict[int, int] = {}  # value whose bytes are overwritten -> the step that does

    def current(self, name: str) -> int:
        """The value of a named tensor now."""
        value = self._now.get(name)
        return self._first(name, "param", self._tensors[name].type) if value is None else value

    def status(self) -> int:
        """The value of the run's status now."""
        value = self._now.get(_STATUS)
        return self._first(_STATUS, "status", STATUS) if value is None else value

    def _first(self, name: str, kind: str, t: TensorType) -> int:
        buffer = self._flat.add_buffer(kind, nbytes(t))
        self._flat.labels[buffer] = name
        value = self._now[name] = self._flat.add_value(name or "status", t, buffer, 0)
        self._aliases[buffer] = [value]
        return value

    def next(self, name: str) -> int:
        """The tensor's value from the step on that is added next; what was there becomes stale."""
        flat = self._flat
        old = self.status() if name == _STATUS else self.current(name)
        buffer = flat.homes[old]
        self.stale.update(dict.fromkeys(self._aliases[buffer], len(flat.steps)))
        value = self._now[name] = flat.add_value(flat.names[old], flat.types[old], buffer, 0)
        self._aliases[buffer] = [value]
        return value

    def aliased(self, value: int, operand: int | None) -> int:
        """The buffer that a reinterpretation shares with its operand; `value` is its result."""
        assert operand is not None
        home = self._flat.homes[operand]
        if home in self._aliases:
            self._aliases[home].append(value)
        return home

    def fresh(self, value: int) -> int:
        """The value, or, where its bytes were overwritten, a copy that was taken before."""
        before = self.stale.get(value)
        if before is None:
            return value
        if value not in self._copies:
            flat = self._flat
            step = flat.steps[before]
            copy = self._snapshot(value, flat.frame_of[value], step.frame, step.statement)
            self._before.setdefault(before, []).append(copy)
            self._copies[value] = copy.results[0]
        return self._copies[value]

    def copy_now(self, value: int, frame: int, statement: Statement) -> int:
        """A copy of a value, taken at the step that is added next."""
        step = self._snapshot(value, frame, frame, statement)
        self._flat.steps.append(step)
        self._flat.costs.append(self._cost(step))
        return step.results[0]

    def _snapshot(self, value: int, scope: int, frame: int, statement: Statement) -> Step:
        flat, t = self._flat, self._flat.types[value]
        copy = flat.add_value(flat.names[value], t, flat.add_buffer("temp", nbytes(t)), scope)
        return Step(snapshot, (value,), (copy,), (t,), {}, frame, statement)

    def _cost(self, step: Step) -> int:
        return estimate(step.op, step.operand_types, (self._flat.types[step.results[0]],), {})

    def insert_copies(self) -> None:
        """Puts the snapshots where they belong, once all steps are there."""
        if not self._before:
            return
        flat = self._flat
        steps, costs = [], []
        for k, (step, cost) in enumerate(zip(flat.steps, flat.costs, strict=True)):
            copies = self._before.get(k, ())
            steps += [*copies, step]
            costs += [*map(self._cost, copies), cost]
        flat.steps, flat.costs = steps, costs


def gather_commits(flat: Flat) -> Flat:
    """The same with the updates at the end, whose results no step reads, after the snapshots there:
    only updates follow the first of them, and a run can be given up until that one begins.
    """
    steps, homes, begin = flat.steps, flat.homes, len(flat.steps)
    while begin and steps[begin - 1].op in (update, snapshot):
        begin -= 1
    staying: list[int] = []
    moving: list[int] = []
    used: set[int] = set()  # buffers that later steps which stay read or write
    written: set[int] = set()
    for i in range(len(steps) - 1, begin - 1, -1):
        target = homes[steps[i].results[0]]
        operands = {homes[v] for v in steps[i].operands if v is not None}
        if steps[i].op is update and target not in used and not operands & written:
            moving.append(i)
        else:
            staying.append(i)
            used |= {target, *operands}
            written.add(target)
    if not moving:
        return flat
    return flat.ordered([*range(begin), *reversed(staying), *reversed(moving)], len(moving))
