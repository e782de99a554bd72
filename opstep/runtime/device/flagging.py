"""Flags of NaNs and infinities in results of ops that run at full speed.

After each op whose result is watched, a kernel reads that result, on the same stream and while it
is in the caches; on a GPU one kernel reads many results at the end, of those that keep their memory
until then. A function of the plan chooses these results: `born` or `leaving`. The plan is the same
as without flags: the same streams, the same memory. All flags of a plan are in one piece of the
host's memory, which is only written where a value is bad; the host reads it once a step, whatever
control flow did in between. A `Verdict` reads it for a step that may still be running.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.device.builtin import float_to_bits, offset
from opstep.runtime.device.protocols import Device, Event, Own
from opstep.runtime.ir.graph import NOWHERE, Apply, Name
from opstep.runtime.ir.types import DType, TensorType, f64, i64
from opstep.runtime.plan.internal import FLAGS, TOGETHER, flag, flag_several, update
from opstep.runtime.plan.plan import Plan, Run, Step

_ROUNDS = 200  # looks before a thread sleeps: to wake it takes longer than most steps
INFINITY = {"f64": 0x7FF0000000000000, "f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80}


class Raised(NamedTuple):
    """A result that had NaNs or infinities in some activation of its plan."""

    plan: Plan
    step: int
    value: int
    nan: bool
    inf: bool

    @property
    def maker(self) -> Step:
        """The op whose result it is, also where several ops run as one."""
        step = self.plan.steps[self.step]
        return next((m for m in step.members if self.value in m.results), step)


Watched = list[tuple[int, int]]
"""(step, value) of the watched results, in the order of launches."""
Which = Callable[[Plan], Watched]

Looking = tuple[list[int], list[Own]]
"""Values, and launches that read them, bound to their addresses in that order."""


class PlanFlags:
    """The watched values of a plan and their flags, shared by all runs of it.

    `at_end`: values that are read when all ops have run, many by one launch; they keep their memory
    until then.
    """

    def __init__(
        self, plan: Plan, device: Device, watched: Watched, at_end: Collection[int] = ()
    ):  # fmt: skip
        self.plan = plan
        self.device = device
        self.watched = watched
        # step -> (value, row of its flags): of those read after the step, and at the end
        self.behind: dict[int, list[tuple[int, int]]] = {}
        self.at_end: dict[int, list[tuple[int, int]]] = {}
        for row, (step, value) in enumerate(self.watched):
            places = self.at_end if value in at_end else self.behind
            places.setdefault(step, []).append((value, row))
        self.words: np.ndarray = device.words(2 * max(len(self.watched), 1)).reshape(-1, 2)

    def launches(self, step: int, address_of: Callable[[int], Any]) -> list[Looking]:
        """Launches that read the results of a step, which are where `address_of` says."""
        bound: list[Looking] = []
        for value, row in self.behind.get(step, ()):
            launches, _ = self.device.prepare(*step_for(self.plan.values[value].type))
            target: Any = self.words.ctypes.data + row * FLAGS.nbytes
            looking = self.device.bind(launches, [address_of(value).address, target], 0)
            bound.append(([value], looking))
        return bound

    def launches_at_end(
        self, steps: Sequence[int], address_of: Callable[[int], Any]
    ) -> list[Looking]:  # fmt: skip
        """Launches that read the results of these steps."""
        found: dict[DType, list[tuple[int, int]]] = {}
        for step in steps:
            for value, row in self.at_end.get(step, ()):
                found.setdefault(self.plan.values[value].type.dtype, []).append((value, row))
        bound: list[Looking] = []
        for places in found.values():
            for k in range(0, len(places), TOGETHER):
                values, rows = zip(*places[k : k + TOGETHER], strict=True)
                types = [self.plan.values[v].type for v in values]
                launches, _ = self.device.prepare(*step_for_several(types, rows, self.words.size))
                addresses = [address_of(v).address for v in values]
                addresses += addresses[:1] * (TOGETHER - len(values))
                target: Any = self.words.ctypes.data
                looking = self.device.bind(launches, [*addresses, target], 0)
                bound.append((list(values), looking))
        return bound


class Flags:
    """The flags of all plans of a context."""

    def __init__(self, device: Device, which: Which):
        self.device = device
        self._which = which
        self._plans: dict[int, PlanFlags] = {}

    def of(self, plan: Plan) -> PlanFlags:
        if id(plan) not in self._plans:
            watched = self._which(plan)
            at_end = _staying(plan) if self.device.gathers and self._which is not born else ()
            self._plans[id(plan)] = PlanFlags(plan, self.device, watched, at_end)
        return self._plans[id(plan)]

    def raised(self) -> list[Raised]:
        """The flags that were raised since they were cleared; the run must be done."""
        found = []
        for flags in self._plans.values():
            if flags.words.any():
                for row in np.flatnonzero(flags.words.any(axis=1)):
                    step, value = flags.watched[row]
                    nan, inf = (bool(w) for w in flags.words[row])
                    found.append(Raised(flags.plan, step, value, nan, inf))
        return found

    def clear(self) -> None:
        for flags in self._plans.values():
            flags.words[...] = 0

    def set_aside(self) -> list[tuple[PlanFlags, np.ndarray]]:
        """Clears the flags and returns their values for `put_back`. No run is under way."""
        before = [(flags, flags.words.copy()) for flags in self._plans.values()]
        self.clear()
        return before

    def put_back(self, before: list[tuple[PlanFlags, np.ndarray]]) -> None:
        """Raises the flags that were set aside, too."""
        for flags, words in before:
            flags.words |= words


class Verdict:
    """The flags of a context after a step. `ends`: events that are reached when it is done; none
    where it is. Flags stay until they are cleared, so those of steps before and after it in the
    same context are among them.
    """

    __slots__ = ("ends", "flags")

    def __init__(self, flags: Flags, ends: Sequence[Event] = ()):
        self.flags = flags
        self.ends = ends

    def done(self) -> bool:
        """Whether the step is done, without waiting."""
        return all(event.done() for event in self.ends)

    def wait(self) -> None:
        """Returns when the step is done."""
        for _ in range(_ROUNDS):
            if self.done():
                return
        for event in self.ends:
            event.wait()

    def raised(self) -> list[Raised]:
        """The flags, of a step that is done."""
        return self.flags.raised()


def born(plan: Plan) -> Watched:
    """Each result that may have a NaN or an infinity though no operand has one, and those that
    leave the plan. Values between ops that run as one are not watched.
    """
    found = _leaving(plan)
    return [(k, v) for k, v in _floats(plan) if v in found or _may_fault(plan.steps[k])]


def leaving(plan: Plan) -> Watched:
    """Results that leave the plan: as outputs, or into a named tensor. A bad value elsewhere that
    reaches none of them does no harm.
    """
    found = _leaving(plan)
    return [(k, v) for k, v in _floats(plan) if v in found]


def _leaving(plan: Plan) -> set[int]:
    """Also what is given to control flow, which may pass it on; what steps are of that are not
    looked at, such as reshape; and where a part of a tensor is overwritten in place, that part and
    the tensor, for the rest, if nothing of that part comes from outside.
    """
    found, values, made = set(plan.outputs) | _updates(plan), plan.values, _made(plan)
    for step in reversed(plan.steps):
        operands = [v for v in step.operands if v is not None]
        leaves = bool(found.intersection(step.results))
        if step.op is update or step.op.traits.host or (leaves and not _is_looked_at(step)):
            found.update(operands)
        elif leaves and step.op.traits.overwrites and not step.op.may_fault():
            buffer = values[operands[0]].buffer
            if buffer != values[step.results[0]].buffer:
                continue
            if plan.buffers[buffer].kind != "temp" or made.issuperset(operands):
                found.remove(step.results[0])  # of a loop, whose operands are looked at elsewhere
            found.update(operands)
    return found


def _made(plan: Plan) -> set[int]:
    """Values that can be bad only where a watched result is."""
    literals = ((v, plan.buffers[value.buffer].literal) for v, value in enumerate(plan.values))
    found = {v for v, n in literals if n is not None and isfinite(n)}
    found |= {v for v, value in enumerate(plan.values) if not value.type.dtype.is_float}
    for step in plan.steps:
        if _is_looked_at(step) or found.issuperset(v for v in step.operands if v is not None):
            found.update(step.results)
    return found


def _updates(plan: Plan) -> set[int]:
    """Named tensors as steps of several ops leave them."""
    members = (m for step in plan.steps for m in step.members if m.op is update)
    return {v for m in members for v in m.results}


def _staying(plan: Plan) -> set[int]:
    """Values whose memory is theirs until the plan has run."""
    found = set(plan.outputs) | _updates(plan)
    for step in reversed(plan.steps):
        if step.op.traits.reinterprets and step.results[0] in found:
            found.update(v for v in step.operands if v is not None)
    return found


def _may_fault(step: Step) -> bool:
    ops = [m.op for m in step.members if m.op is not update] or [step.op]
    return any(op.may_fault() for op in ops)


def _is_looked_at(step: Step) -> bool:
    """Whether kernels compute its results, and programs can name its op."""
    return bool(step.launches) and bool(step.members or step.op.family != "internal")


def _floats(plan: Plan) -> Iterator[tuple[int, int]]:
    """(step, value) of all results that can be bad, in the order of their launches."""
    for instruction in plan.instructions:
        if not isinstance(instruction, Run):
            continue
        step = plan.steps[instruction.step]
        for v in step.results if _is_looked_at(step) else ():
            t = plan.values[v].type
            if t.dtype.is_float and t.size:
                yield instruction.step, v


def step_for(t: TensorType) -> tuple[Step, tuple[TensorType, TensorType]]:
    """A step, of no plan, that reads a tensor; and the types that a device needs for it."""
    statement = Apply((), Name(flag.name, NOWHERE), ())
    return Step(flag, (), (), (t,), {}, 0, statement), (t, FLAGS)


def step_for_several(
    types: Sequence[TensorType], rows: Sequence[int], words: int
) -> tuple[Step, tuple[TensorType, ...]]:  # fmt: skip
    """`step_for` of several tensors of one dtype, with so many words for flags."""
    padded = (*types, *[types[0]] * (TOGETHER - len(types)))
    statement = Apply((), Name(flag_several.name, NOWHERE), ())
    step = Step(flag_several, (), (), padded, {"rows": tuple(rows)}, 0, statement)
    return step, (*padded, TensorType(i64, (words,)))


@cache
def raiser(dtype: DType):
    """The CPU's kernel: the largest bits without the sign tell whether there is anything."""
    word = {8: np.int64, 4: np.int32, 2: np.uint16}[dtype.itemsize]
    infinity = INFINITY[dtype.name]
    size_of = _size_of_half if dtype.is_half else _size_of_double if dtype is f64 else _size_of

    def raise_flags(x, flags, lo, hi):
        most = word(0)
        for i in range(lo, hi):
            size = size_of(x[i])
            most = size if size > most else most
        if most >= infinity:
            for i in range(lo, hi):
                size = size_of(x[i])
                if size > infinity:
                    flags[0] = 1
                elif size == infinity:
                    flags[1] = 1

    raise_flags.__name__ = f"flags of {dtype.name}"
    return raise_flags


@cache
def raiser_at(dtype: DType):
    """`raiser` whose flags are those of a row."""
    look_at = raiser(dtype)

    def raise_flags(x, flags, row, lo, hi):
        look_at(x, offset(flags, 2 * row), lo, hi)

    raise_flags.__name__ = f"flags of {dtype.name} tensors"
    return raise_flags


def _size_of(v):
    return np.int32(np.int32(float_to_bits(v)) & np.int32(0x7FFFFFFF))


def _size_of_double(v):
    return float_to_bits(v) & 0x7FFFFFFFFFFFFFFF


def _size_of_half(v):
    return np.uint16(v & np.uint16(0x7FFF))
