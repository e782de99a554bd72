"""Gradients within a memory budget: what is dropped on the way and computed again.

What a run takes is known from its plan: inputs, params and states, and one arena that all other
values share. Where that is more than the budget, `plan.recompute` chooses what to compute again;
the text is written anew, and its plan tells whether it fits now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from opstep.api.devices import PLAIN
from opstep.api.sources import check_symbols
from opstep.runtime.ir.amounts import parse_size, size
from opstep.runtime.ir.diagnostics import names_listed
from opstep.runtime.ir.effects import called_graphs
from opstep.runtime.ir.errors import InputError, SettingError
from opstep.runtime.ir.graph import Apply, Module
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.plan.control import passed_types
from opstep.runtime.plan.plan import MODES, Alloc, Call, Free, Plan, Policy, Run, Step
from opstep.runtime.plan.planner import prepared
from opstep.runtime.plan.recompute import choose
from opstep.runtime.plan.sequence import Rerun, sequence, sunk
from opstep.runtime.plan.sequence import Sequence as Statements
from opstep.runtime.recording import live_bytes
from opstep.runtime.transforms.recompute import with_repeats

if TYPE_CHECKING:
    from opstep.api.program import Program

_MOST_PLANS = 6  # that are made to see whether the choice was enough
_PARTS = 16  # of the peak, half of which are tried where it was not
_NAMED = 5  # values that a message names


class Memory(NamedTuple):
    """Bytes that a run of a graph takes: `fixed` are inputs, params and states, `called` those of
    the graphs that control flow calls, each once; all else shares the arena of the plan.
    """

    fixed: int
    called: int
    plan: Plan

    @property
    def total(self) -> int:
        return self.fixed + self.plan.arena + self.called


def budget(memory: str | int) -> int:
    """``4GiB`` or a number of bytes. Raises `SettingError`."""
    found = parse_size(memory) if isinstance(memory, str) else memory
    if not isinstance(found, int) or isinstance(found, bool) or found <= 0:
        raise SettingError("memory", memory, "a size such as '4GiB', or a number of bytes")
    return found


def memory_of(
    program: Program, graph: str, types: Sequence[TensorType], policy: Policy = MODES["async"]
) -> Memory:
    """What a run of a graph takes on the CPU."""
    plan = program.plan(graph, types, policy)
    fixed = sum(b.nbytes for b in plan.buffers if b.kind != "temp")
    return Memory(fixed, _called(program, plan, {plan.signature}), plan)


def _called(program: Program, plan: Plan, within: set) -> int:
    """Memory of the graphs that control flow calls; a graph within itself counts once."""
    found = 0
    for step in (s for s in plan.steps if s.op.traits.host):
        types = passed_types(step)
        for name in called_graphs(step.attrs):
            if (name, types) not in within:
                called = program.plan(name, types, plan.policy)
                found += called.arena + _called(program, called, {*within, (name, types)})
    return found


def within(
    program: Program, gradient: str, root: str, memory: str | int,
    symbols: Mapping[str, int | DType],
) -> Module:  # fmt: skip
    """The program's module with the graph `gradient` written so that a run of `root`, which is it
    or calls it, takes at most so much memory for these sizes. Raises `InputError` where that cannot
    be, and names the least that was found.
    """
    return _Within(program, gradient, root, budget(memory), symbols).module()


class _Within:
    def __init__(
        self, program: Program, gradient: str, root: str, limit: int,
        symbols: Mapping[str, int | DType],
    ):  # fmt: skip
        self.program = program
        self.graph = program.graph(gradient)
        self.root = root
        self.limit = limit
        check_symbols(self.graph, symbols)
        self.sizes = ", ".join(f"{k} = {n}" for k, n in symbols.items())
        self.types = program.input_types(self.graph, symbols)
        self.before = self.least = memory_of(program, root, self.types)
        self.cheapest: tuple[int, Module] | None = None  # of those that fit, by what it costs

    def module(self) -> Module:
        program = self.program
        if self.least.total <= self.limit:
            return program.module
        prepare = program.on("cpu", PLAIN).prepare
        flat = prepared(
            program.verified, self.graph.name.text, self.types, prepare, program.library
        )
        one = memory_of(program, self.root, self.types, replace(MODES["async"], streams=1))
        text = sequence(flat)
        orders = [text, sunk(text)]
        for statements in orders:
            self._search(statements, one)
        if self.cheapest is None:
            self.least = self.before
            for statements in orders:
                self._find_least(statements)
        if self.cheapest is None:
            raise self._error()
        return self.cheapest[1]

    def _search(self, statements: Statements, one: Memory) -> None:
        """Choices for less and less, until one fits. `one`: what is taken on one stream."""
        peak = Rerun(statements, {}).peak
        target = peak - max(one.total - self.limit, one.total // 50)
        for _ in range(_MOST_PLANS):
            rerun = choose(statements, target)
            excess = self._try(rerun)
            if excess <= 0 or rerun.peak > target:
                break
            target -= max(excess, peak // 50)

    def _try(self, rerun: Rerun) -> int:
        """How much the graph takes too much with what the choice computes again."""
        module = self._written(rerun)
        memory = memory_of(type(self.program)(module, self.program.fallback), self.root, self.types)
        if memory.total < self.least.total:
            self.least = memory
        excess = memory.total - self.limit
        if excess <= 0 and (self.cheapest is None or rerun.cost < self.cheapest[0]):
            self.cheapest = rerun.cost, module
        return excess

    def _find_least(self, statements: Statements) -> None:
        """The smallest budget that can be met, nearly, whatever the one at hand is."""
        peak = Rerun(statements, {}).peak
        for k in range(_PARTS // 2):
            self._try(choose(statements, peak * k // _PARTS))

    def _written(self, rerun: Rerun) -> Module:
        """The module with what the choice computes again."""
        nodes, module = rerun.sequence.nodes, self.program.module
        order = [(nodes[k].statement, n) for k, n in zip(rerun.node, rerun.instance, strict=True)]
        again = dict.fromkeys(
            s.results[0].name.text for s, n in order if n and isinstance(s, Apply)
        )
        told = f"Within {size(self.limit)}{self.sizes and f' where {self.sizes}'}: "
        told += f"computes {names_listed(again)} again."
        graph = with_repeats(self.graph, order, self.program.verified.tensors, told)
        items = tuple(graph if item is self.graph else item for item in module.items)
        return Module(items, module.closing, module.source)

    def _error(self) -> InputError:
        least = self.least
        where = f" where {self.sizes}" if self.sizes else ""
        message = f"{self.root} takes at least {size(least.total)}{where}, not {size(self.limit)}"
        hint = f"{size(least.fixed)} are inputs, params and states"
        if least.called:
            hint += f", {size(least.called)} are for graphs that control flow calls"
        if largest := _largest(least.plan):
            hint += f"; of the other {size(least.plan.arena)} most is held by {', '.join(largest)}"
        return InputError(message, hint=hint)


def _largest(plan: Plan) -> list[str]:
    """The largest values that live when most is held, with their lines."""
    live = live_bytes(plan)
    if not live:
        return []
    peak = max(live, key=live.__getitem__)
    held = _held(plan, peak)
    makers: dict[int, Step] = {}
    for step in plan.steps:
        for v in step.results:
            makers.setdefault(plan.values[v].buffer, step)
    found = []
    for b in sorted(held, key=lambda b: -plan.buffers[b].nbytes)[:_NAMED]:
        if b in makers:
            step = makers[b]
            name = next(plan.values[v].name for v in step.results if plan.values[v].buffer == b)
            found.append(f"{name} ({size(plan.buffers[b].nbytes)}{_line(step)})")
    return found


def _held(plan: Plan, peak: int) -> set[int]:
    """The buffers that live while a step runs."""
    held: set[int] = set()
    for instruction in plan.instructions:
        match instruction:
            case Alloc(buffer):
                held.add(buffer)
            case Free(buffer):
                held.discard(buffer)
            case Run(step) | Call(step):
                if step == peak:
                    break
    return held


def _line(step: Step) -> str:
    at = step.statement.at if isinstance(step.statement, Apply) else None
    return f", {at.file}:{at.line}" if at else ""
