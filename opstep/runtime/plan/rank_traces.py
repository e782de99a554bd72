"""The collectives that each rank executes in a run, in order, found from a plan.

A plan is followed once for all ranks that do the same. `rank` and what is computed of it and of
numbers is known, so branches by it are taken; ranks that take another one are followed by
themselves. Of all other values it is only known along which axes of the mesh ranks have the same:
a branch by such a value stays open, and may only talk along these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opstep.runtime.ir.control import BODY, TEST
from opstep.runtime.ir.graph import Apply, Source, Span
from opstep.runtime.ir.mesh import Group, Mesh
from opstep.runtime.ir.op import OPS, Mismatch
from opstep.runtime.ir.printer import print_value
from opstep.runtime.ir.shards import Shard, replicas
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.control import control_of, passed_types
from opstep.runtime.plan.internal import update
from opstep.runtime.plan.plan import Plan, Step
from opstep.runtime.plan.rank_turns import End, Fact, Turns

Plans = Callable[[str, tuple[TensorType, ...]], Plan]
_MOST_STEPS = 200_000  # of loops whose end is known; of others one turn is followed
_DEEPEST = 200  # calls within calls whose branch is known; of deeper ones each branch is followed
_TO_ALL = ("all_reduce", "all_gather", "broadcast_from")


@dataclass(frozen=True)
class Place:
    """A statement of a text."""

    source: Source | None
    span: Span


@dataclass(frozen=True)
class Talk:
    """A collective of some ranks. `what`: what must be equal on all that take part. `peer`: of
    send and recv, the other one in the group.
    """

    op: str
    group: Group
    what: str
    place: Place = field(compare=False)
    peer: int = -1

    @property
    def is_pair(self) -> bool:
        return self.peer >= 0

    def __str__(self) -> str:
        over = "" if self.group.is_whole else f" over {self.group.name}"
        return f"{self.op} of {self.what}{over}"


@dataclass(frozen=True)
class Fork:
    """Control flow that is open: all ranks along `axes` take the same way, of which each is a
    trace. `word`: of a branch or a loop.
    """

    word: str
    axes: frozenset[str]
    ways: tuple[Trace, ...]
    place: Place = field(compare=False)

    def __str__(self) -> str:
        return f"a {self.word} with collectives in it"


Trace = tuple["Talk | Fork", ...]


def talks_in(trace: Trace) -> Iterable[Talk]:
    """All collectives, those of open ways among them."""
    for one in trace:
        if isinstance(one, Talk):
            yield one
        else:
            for way in one.ways:
                yield from talks_in(way)


def traces(
    plan: Plan, plans: Plans, mesh: Mesh, ranks: Sequence[int], shards: Mapping[str, Shard]
) -> dict[Trace, list[int]]:
    """The traces of these ranks when they run a plan, each with the ranks that have it. `plans`
    gives the plans of graphs that control flow calls.
    """
    return _followed(plan, plans, mesh, ranks, shards)[0]


def parting(
    plan: Plan, plans: Plans, mesh: Mesh, ranks: Sequence[int], axis: str,
    shards: Mapping[str, Shard],
) -> dict[str, Place]:  # fmt: skip
    """Tensors of which ranks along an axis may get different values, with the first update that
    does it; but for those that they have different parts of.
    """
    differing = _followed(plan, plans, mesh, ranks, shards)[1]
    return {
        name: place
        for name, (axes, place) in differing.items()
        if axis not in axes and replicas(shards, name, (axis,))
    }


def _followed(
    plan: Plan, plans: Plans, mesh: Mesh, ranks: Sequence[int], shards: Mapping[str, Shard]
) -> tuple[dict[Trace, list[int]], _Differing]:
    alike = {n: frozenset(replicas(shards, n, mesh.names)) for n in shards}
    differing: _Differing = {}
    while True:  # a tensor that ranks update differently differs from the start of the next run
        found: dict[Trace, list[int]] = {}
        before = dict(differing)
        todo: list[tuple[np.ndarray, dict[int, Turns]]] = [(np.array(ranks), {})]
        while todo:
            some, turned = todo.pop()
            walk = _Walk(mesh, some, plans, differing, alike, turned)
            try:
                trace = walk.trace(plan)
            except _Parted as parted:
                turned = walk.turned
                todo += [(some[parted.way == w], turned) for w in np.unique(parted.way)[::-1]]
            else:
                found.setdefault(trace, []).extend(some.tolist())
        if differing == before:
            return found, differing


# Tensors that ranks update differently: the axes along which they are alike, and the update.
_Differing = dict[str, tuple[frozenset[str], Place]]


class _Parted(Exception):
    """Ranks go different ways: `way` has the number of each one's."""

    def __init__(self, way: np.ndarray):
        super().__init__()
        self.way = way


class _Walk:
    def __init__(
        self, mesh: Mesh, ranks: np.ndarray, plans: Plans, differing: _Differing,
        alike: Mapping[str, frozenset[str]], turned: Mapping[int, Turns],
    ):  # fmt: skip
        """`alike`: of tensors that ranks have parts of, the axes along which they have the same.
        `turned`: loops that have been followed for these ranks, by their number on the way.
        """
        self.ranks = ranks
        self.plans = plans
        self.differing = differing
        self.alike = alike
        self.turned = dict(turned)
        self.loops = 0
        self.budget = _MOST_STEPS
        self.depth = 0
        self.all: frozenset[str] = frozenset(mesh.names)
        self.said: list[Talk | Fork] = []
        self.open: list[tuple] = []  # graphs on the way here that were called in open ways

    def trace(self, plan: Plan) -> Trace:
        self._follow(plan, [frozenset()] * len(plan.inputs))
        return tuple(self.said)

    def _follow(self, plan: Plan, inputs: Sequence[Fact]) -> list[Fact]:
        facts: dict[int, Fact] = dict(zip(plan.inputs, inputs, strict=True))
        self._consts(plan, facts)
        for step in plan.steps:
            given = [self._of(plan, facts, v) for v in step.operands if v is not None]
            if step.op.traits.host:
                results = self._control(plan, step, given)
            elif step.op is update:
                name = plan.buffers[plan.values[step.results[0]].buffer].name
                axes = self._axes(given[0])
                if not axes >= self.alike.get(name, self.all):
                    known, place = self.differing.get(name, (axes, place_of(plan, step)))
                    self.differing[name] = axes & known, place
                continue
            else:
                results = [self._result(plan, step, given)] * len(step.results)
            facts.update(zip(step.results, results, strict=True))
        return [self._of(plan, facts, v) for v in plan.outputs]

    def _consts(self, plan: Plan, facts: dict[int, Fact]) -> None:
        for v, value in enumerate(plan.values):
            if value.buffer >= 0 and plan.buffers[value.buffer].kind == "const":
                literal = plan.buffers[value.buffer].literal
                facts[v] = np.array(literal, value.type.dtype.numpy)

    def _of(self, plan: Plan, facts: dict[int, Fact], v: int) -> Fact:
        if v in facts:
            return facts[v]
        buffer = plan.values[v].buffer
        name = plan.buffers[buffer].name if buffer >= 0 else ""
        alike = self.alike.get(name, self.all)
        return self.differing[name][0] & alike if name in self.differing else alike

    def _axes(self, *facts: Fact) -> frozenset[str]:
        """Along which ranks have the same of all these."""
        axes = self.all
        for fact in facts:
            if not isinstance(fact, np.ndarray):
                axes &= fact
            elif fact.ndim and (fact != fact[0]).any():
                axes = frozenset()
        return axes

    def _result(self, plan: Plan, step: Step, given: list[Fact]) -> Fact:
        op, attrs = step.op, step.attrs
        if op.traits.collective:
            self._say(plan, step)
            axes = self._axes(*given)
            if op.name in _TO_ALL:
                return axes | frozenset(attrs["over"].axes)
            return (
                axes if op.name in ("barrier", "send") or attrs["over"].size == 1 else frozenset()
            )
        if op.traits.by_rank:
            return np.array([attrs["over"].index(r) for r in self.ranks.tolist()], np.int32)
        (t, *more) = [plan.values[v].type for v in step.results]
        known = [f for f in given if isinstance(f, np.ndarray)]
        by_element = op.element is not None or not any(f.ndim for f in known)
        by_element &= op.name in OPS  # others have no oracle
        if len(known) == len(given) and by_element and not more and not t.rank:
            with np.errstate(all="ignore"):
                return np.asarray(op.oracle(*known, **attrs)).astype(t.dtype.numpy)
        return self._axes(*given)

    def _say(self, plan: Plan, step: Step) -> None:
        if step.attrs["over"].size > 1:
            self.said.append(talk_of(plan, step))

    # --- control flow -----------------------------------------------------------------------------

    def _control(self, plan: Plan, step: Step, given: list[Fact]) -> list[Fact]:
        if not control_of(step).selects:
            return self._loop(plan, step, given)
        selector, operands = given[0], given[1:]
        if isinstance(selector, np.ndarray) and self.depth < _DEEPEST:
            try:
                calls = [control_of(step).first_call(step.attrs, s) for s in np.unique(selector)]
            except Mismatch:  # of no branch: the run fails there
                return [frozenset()] * len(step.results)
            if len(calls) > 1:
                raise _Parted(selector)
            self.depth += 1
            found = self._follow(self.plans(calls[0].graph, passed_types(step)), operands)
            self.depth -= 1
            return found
        axes = self._axes(selector)
        ways = [self._way(name, passed_types(step), operands) for name in step.graphs]
        said = [trace for trace, _ in ways]
        if all(trace == said[0] for trace in said):
            self.said += said[0]
        else:
            self.said.append(Fork("branch", axes, tuple(said), place_of(plan, step)))
        results = zip(*(facts for _, facts in ways), strict=True)
        return [self._axes(*facts) & axes for facts in results]

    def _way(
        self, graph: str, types: tuple[TensorType, ...], given: Sequence[Fact]
    ) -> tuple[Trace, list[Fact]]:
        """The trace of a branch that may be taken, and the facts of its results."""
        plan = self.plans(graph, types)
        if (graph, types) in self.open:  # it calls itself: the first time tells what is said
            return (), [frozenset()] * len(plan.outputs)
        outer, self.said = self.said, []
        self.open.append((graph, types))
        try:
            facts = self._follow(
                plan, [f if isinstance(f, frozenset) else self._axes(f) for f in given]
            )
            return tuple(self.said), facts
        finally:
            self.open.pop()
            self.said = outer

    def _loop(self, plan: Plan, step: Step, given: list[Fact]) -> list[Fact]:
        number, said = self.loops, len(self.said)
        self.loops += 1
        before = self.turned.get(number)
        if before is not None and (end := before.of(self.ranks)) is not None:
            self.said += before.said[: end.said]
            self.budget = end.budget
            return end.carried
        types = passed_types(step)
        test, body = (self.plans(step.attrs[k].name, types) for k in (TEST, BODY))
        if before is not None and before.is_open(self.ranks):
            self.budget = before.budget
        elif step.changed:
            known = self._turns(step, test, body, given, number)
            if known is not None:
                return known
            del self.said[said:]
        holds: Fact = frozenset()
        carried: list[Fact] = [self._axes(f) for f in given]
        while True:  # what a turn leaves is what the next one is given
            _, (holds,) = self._way(test.graph, types, carried)
            _, after = self._way(body.graph, types, carried)
            joined: list[Fact] = [self._axes(a, b) for a, b in zip(carried, after, strict=True)]
            if joined == carried:
                break
            carried = joined
        ways = self._way(test.graph, types, carried)[0], self._way(body.graph, types, carried)[0]
        if any(ways):
            self.said.append(Fork("loop", self._axes(holds), ways, place_of(plan, step)))
        return carried

    def _turns(
        self, step: Step, test: Plan, body: Plan, given: list[Fact], number: int
    ) -> list[Fact] | None:
        """Values that ranks carry out of a loop whose turns are known; None where they are not.
        Those that leave it earlier than others are left out of further turns.
        """
        every, before = self.ranks, len(self.said)
        turns, carried, count = Turns(every), list(given), 0
        try:
            while True:
                (holds,) = self._follow(test, carried)
                if not isinstance(holds, np.ndarray):
                    break
                out = ~np.broadcast_to(holds, self.ranks.shape)
                if out.all() and self.ranks is every:
                    return carried
                if out.any():
                    end = End(len(self.said) - before, carried, self.budget)
                    carried = turns.leave(out, end)
                    self.ranks = turns.ranks
                if not self.ranks.size or self.budget < 0 or count >= step.attrs["limit"]:
                    break
                self.budget -= len(test.steps) + len(body.steps) + 1
                carried, count = self._follow(body, carried), count + 1
        except _Parted as parted:  # not those that have left
            way = dict(zip(self.ranks.tolist(), parted.way.tolist(), strict=True))
            others = max(way.values()) + 1
            raise _Parted(np.array([way.get(r, others) for r in every.tolist()])) from None
        finally:
            self.ranks = every
        turns.said, turns.budget = self.said[before:], self.budget
        self.turned[number] = turns
        if turns.left:
            raise _Parted(turns.way(every))
        return None


def _is_default(step: Step, name: str, value: Any) -> bool:
    return any(spec.name == name and spec.default == value for spec in step.op.attrs)


def talk_of(plan: Plan, step: Step) -> Talk:
    """The `Talk` of a step, which is a collective of several ranks."""
    attrs = dict(step.attrs)
    over = attrs.pop("over")
    peer = attrs.pop("to", attrs.pop("source", -1))
    shown = [f"{k}={print_value(v)}" for k, v in attrs.items() if not _is_default(step, k, v)]
    what = ", ".join([str(step.operand_types[0]), *shown])
    return Talk(step.op.name, over, what, place_of(plan, step), peer)


def place_of(plan: Plan, step: Step) -> Place:
    statement = step.statement
    span = statement.callee.span if isinstance(statement, Apply) else statement.span
    return Place(plan.frames[step.frame].source, span)
