"""Groups of elementwise ops that run as one launch: values between them stay in registers.

Each op still computes and rounds in its own element type, so no bit changes. A group becomes one
step, `fused`, at the place of its last op. Ops join a group only until a step outside reads one of
its results, so no order has to be searched: all operands of a group are ready at its place, and all
readers of its results come later.

An update of a named tensor is elementwise too: the group stores the value that it would copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from opstep.runtime.ir.interfaces import per_channel_of
from opstep.runtime.ir.op import Op, Traits
from opstep.runtime.ir.types import DType
from opstep.runtime.plan.cost import BYTES_PER_NS, FLOPS_PER_NS, LAUNCH_NS, WORTH_A_KERNEL_NS
from opstep.runtime.plan.flat import Flat
from opstep.runtime.plan.internal import Described, PlanOp, update
from opstep.runtime.plan.plan import Step
from opstep.runtime.plan.schedule import dependencies

MOST_OPERANDS = 24  # of a group
MOST_MEASURED = 5  # of its registers: a multiprocessor has room for two blocks that count them
MOST_OPS = 32  # of a group: compilers take long for more
MOST_READ = MOST_OPERANDS - 6  # buffers, so that another op finds room


class fused(PlanOp):
    """Ops that are computed together, element by element (kernels in `kernels.pointwise.fused`)."""

    name = "fused"
    traits = Traits(moves=True)  # its operands are seen as they are stored
    inplace = tuple(range(MOST_OPERANDS))


class measured(PlanOp):
    """`fused` that also takes moments and counts of some registers, for a recorded run."""

    name = "measured"
    traits = Traits(moves=True)
    inplace = fused.inplace


class Member(NamedTuple):
    """One op of a group. Its operands are registers: those of the group's operands come first, then
    one for each member. `seen`: the types that it computes with.
    """

    op: type[Op]
    operands: tuple[int, ...]
    seen: tuple[DType, ...]
    result: DType
    attrs: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, repr=False)
class Body(Described):
    """The computation of a group, without shapes.

    `results` are the registers that it stores; those marked in `updates` only where no assert
    failed, by the run's status, which is operand number `status` (-1: no updates).
    Operands that are `per_channel` have an element for each place along axis 1 of the results;
    others broadcast.
    """

    operands: tuple[DType, ...]
    members: tuple[Member, ...]
    results: tuple[int, ...]
    updates: tuple[bool, ...]
    status: int
    per_channel: tuple[int, ...] = ()

    @property
    def types(self) -> tuple[DType, ...]:
        """Of the registers."""
        return self.operands + tuple(m.result for m in self.members)


def with_fused(flat: Flat) -> Flat:
    """The graph with groups of elementwise ops as one step each, where that is worth a kernel."""
    groups = _Finder(flat).groups()
    if not groups:
        return flat
    made = Grouping(flat)
    gains: dict[str, int] = {}
    for group in groups:
        step, cost = made.step(group)
        gain = sum(flat.costs[k] for k in group) - cost
        key = step.attrs["body"].text
        gains[key] = gains.get(key, 0) + gain
    worth = [
        group
        for group in groups
        if (step := made.step(group)[0]).results
        and gains[step.attrs["body"].text] >= WORTH_A_KERNEL_NS
    ]
    places: dict[int, list[tuple[Step, int]]] = {k: [] for group in worth for k in group}
    places |= {group[-1]: [made.step(group)] for group in worth}
    return flat.replaced(places) if worth else flat


class _Group:
    """Ops that have joined so far."""

    __slots__ = ("into", "made", "members", "open", "read", "shape", "status", "updated")

    def __init__(self, shape: tuple):
        self.shape = shape
        self.open = True  # nothing outside reads what it makes
        self.into = self  # the group that it has become part of
        self.members: list[int] = []
        self.read: dict[int, bool] = {}  # buffer -> whether all read it element by element
        self.made: set[int] = set()  # values that others of the group may read
        self.updated: set[int] = set()  # buffers of named tensors
        self.status: int | None = None  # value that updates depend on


def _now(group: _Group) -> _Group:
    """The group that a group is part of now."""
    while group.into is not group:
        group = group.into
    return group


def _fit_together(a: _Group, b: _Group) -> bool:
    """Whether two groups can be one: it is not too large, and reads each tensor that it updates
    element by element, before that is stored.
    """
    if len(a.members) + len(b.members) >= MOST_OPS or len(a.read.keys() | b.read) >= MOST_READ:
        return False
    whole = all(b.read.get(buffer, True) for buffer in a.updated)
    whole = whole and all(a.read.get(buffer, True) for buffer in b.updated)
    return (
        whole
        and not a.updated & b.updated
        and (a.status == b.status or None in (a.status, b.status))
    )


def _merge(a: _Group, b: _Group) -> None:
    """Makes b part of a."""
    b.into = a
    a.members = sorted(a.members + b.members)
    for buffer, whole in b.read.items():
        a.read[buffer] = a.read.get(buffer, True) and whole
    a.made |= b.made
    a.updated |= b.updated
    a.status = b.status if a.status is None else a.status


class _Finder:
    """Finds groups in one pass over the steps."""

    def __init__(self, flat: Flat):
        self.flat = flat
        self.of_step: dict[int, _Group] = {}
        self.readers: dict[int, _Group] = {}  # value -> the group that read it last
        self.found: list[_Group] = []

    def groups(self) -> list[list[int]]:
        """Those of several ops, each in program order."""
        flat = self.flat
        preds = dependencies(flat)
        commits = len(flat.steps) - flat.commits
        for i, step in enumerate(flat.steps):
            if i == commits:
                for group in self.found:
                    group.open = False
            before = self._open(map(self.of_step.get, preds[i]))
            joined = self._join(i, step, before) if self._fits(step) else None
            for group in before:
                if _now(group) is not joined:
                    group.open = False
        return [g.members for g in self.found if g.into is g and len(g.members) > 1]

    def _open(self, groups: Iterable[_Group | None]) -> list[_Group]:
        """Those that a step may join, each once."""
        found = dict.fromkeys(_now(g) for g in groups if g is not None)
        return [g for g in found if g.open]

    def _fits(self, step: Step) -> bool:
        """Whether each element of the one result is computed from one element of each operand."""
        types = self.flat.types
        if step.op is update:
            value, target = types[step.operands[0] or 0], types[step.results[0]]
            return value.dtype is target.dtype
        return is_elementwise(step)

    def _join(self, i: int, step: Step, before: list[_Group]) -> _Group | None:
        """The group that takes the step; a new one where none can."""
        shape = self.flat.types[step.results[0]].shape
        sharing = self._open(self.readers.get(v) for v in step.operands if v is not None)
        group: _Group | None = None
        for other in dict.fromkeys([*before, *sharing]):
            if other.shape != shape or not self._takes(other, step):
                continue
            if group is None:
                group = other
            elif _fit_together(group, other):
                _merge(group, other)
        if group is None:
            group = _Group(shape)
            self.found.append(group)
        self._add(group, i, step)
        return group

    def _takes(self, group: _Group, step: Step) -> bool:
        """Whether a step may be of a group that it depends on."""
        homes = self.flat.homes
        if len(group.members) >= MOST_OPS or len(group.read) >= MOST_READ:
            return False
        if any(homes[v] in group.updated for v in step.operands if v is not None):
            return False
        if step.op is not update:
            return True
        target = homes[step.results[0]]
        if not group.read.get(target, True) or target in group.updated:
            return False
        return group.status in (None, step.operands[1])

    def _add(self, group: _Group, i: int, step: Step) -> None:
        flat, homes = self.flat, self.flat.homes
        group.members.append(i)
        self.of_step[i] = group
        operands = step.operands
        if step.op is update:
            group.status = operands[1]
            group.updated.add(homes[step.results[0]])
            operands = operands[:1]
        for v in operands:
            if v is None or v in group.made:
                continue
            whole = flat.types[v].shape == group.shape
            group.read[homes[v]] = group.read.get(homes[v], True) and whole
            if whole:
                self.readers[v] = group
        group.made.update(step.results)


def is_elementwise(step: Step) -> bool:
    """Whether each element of the one result is computed from one element of each operand, by an
    op that may be in a group.
    """
    if step.op.element is None or len(step.results) != 1 or None in step.operands:
        return False
    return step.op.element(*step.operand_types, **step.attrs) is not None


def _seen(step: Step) -> list[tuple[int, bool]]:
    """The values that a step reads, and whether they have an element for each channel."""
    per_channel = per_channel_of(step.op)
    return [(v, k in per_channel) for k, v in enumerate(step.operands) if v is not None]


class Grouping:
    """Makes steps of groups. `readers`: see `Flat.readers`."""

    def __init__(self, flat: Flat):
        self.flat = flat
        self._made: dict[int, tuple[Step, int]] = {}
        self.readers = flat.readers()

    def step(self, group: list[int]) -> tuple[Step, int]:
        """The step that replaces a group, and its time in ns."""
        if group[0] not in self._made:
            self._made[group[0]] = self._step(group)
        return self._made[group[0]]

    def _step(self, group: list[int]) -> tuple[Step, int]:
        types, steps = self.flat.types, [self.flat.steps[k] for k in group]
        read, status = self._operands(steps)
        register: dict[Any, int] = {key: k for k, key in enumerate(read)}
        operands = [v for v, _ in read]
        members: list[Member] = []
        stored: list[tuple[int, int, bool]] = []  # value, register, whether it is an update
        kept = self._read_outside(group)
        for step in steps:
            result = step.results[0]
            if step.op is update:
                stored.append((result, register[step.operands[0], False], True))
                continue
            inner = tuple(register[key] for key in _seen(step))
            seen = tuple(t.dtype for t in step.operand_types if t is not None)
            attrs = tuple(step.attrs.items())
            register[result, False] = len(operands) + len(members)
            members.append(Member(step.op, inner, seen, types[result].dtype, attrs))
            if result in kept:
                stored.append((result, register[result, False], False))
        body = Body(
            tuple(types[v].dtype for v in operands),
            tuple(members),
            tuple(r for _, r, _ in stored),
            tuple(u for _, _, u in stored),
            operands.index(status) if status is not None else -1,
            tuple(k for k, (_, per_channel) in enumerate(read) if per_channel),
        )
        last = steps[-1]
        seen_types = tuple(types[v] for v in operands)
        made = Step(
            fused, tuple(operands), tuple(v for v, _, _ in stored), seen_types, {"body": body},
            last.frame, last.statement, members=tuple(steps),
        )  # fmt: skip
        return made, self._cost(made)

    def _operands(self, steps: list[Step]) -> tuple[list[tuple[int, bool]], int | None]:
        """The values from outside the group, as `_seen` gives them, and the run's status."""
        inside = {v for s in steps for v in s.results}
        status = next((s.operands[1] for s in steps if s.op is update), None)
        found = dict.fromkeys(key for s in steps for key in _seen(s) if key[0] not in inside)
        return list(found), status

    def _read_outside(self, group: list[int]) -> set[int]:
        """The results whose memory steps outside the group read, or the caller."""
        flat, inside = self.flat, set(group)
        made = (v for k in group for v in flat.steps[k].results)
        return {v for v in made if not inside.issuperset(self.readers.get(flat.homes[v], ()))}

    def _cost(self, step: Step) -> int:
        flat = self.flat
        moved = [*step.operands, *step.results]
        nbytes: Any = sum(flat.types[v].nbytes for v in moved if v is not None)
        flops: Any = sum(s.op.flops(*s.operand_types, **s.attrs) for s in step.members)
        return LAUNCH_NS + max(nbytes // BYTES_PER_NS, flops // FLOPS_PER_NS)
