"""Statistics of what groups of elementwise ops read and compute (`plan.fusing`), in steps that take
them: the group's kernel has every element in a register.

Of large tensors the kernel counts them itself. Of small ones, where that would take longer than the
group does, it writes them to memory that they share, where one launch looks at all (`packing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from opstep.runtime.device.cuda.recording.gathering import Gathering, gathers
from opstep.runtime.device.cuda.recording.packing import ROOM, padded
from opstep.runtime.device.protocols import Device, Memory
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.fusing import MOST_MEASURED, Body, fused, measured
from opstep.runtime.plan.internal import update
from opstep.runtime.plan.plan import Plan, Run, Step

LARGE = 1 << 20  # elements from which on a group's kernel counts them itself


@dataclass(slots=True)
class Group:
    """What a group's kernel takes: registers, and which value of which step each of them is.

    The kernel takes the statistics of the first `within` of them, and writes the others to memory
    that tensors share. `apart`: where values are that have no memory of their own, and whose
    statistics are taken behind the group.
    """

    plan: Plan
    number: int
    registers: list[int] = field(default_factory=list)
    values: list[tuple[int, int]] = field(default_factory=list)  # step, value
    within: int = 0  # of the registers, the first so many
    apart: dict[int, Memory] = field(default_factory=dict)
    _apart: list[int] = field(default_factory=list)  # their registers

    @property
    def step(self) -> Step:
        return self.plan.steps[self.number]

    @property
    def packed(self) -> list[TensorType]:
        return [self.plan.values[v].type for _, v in self.values[self.within :]]

    def look_apart(self, device: Device, register: int, value: int, memories: list[Memory]) -> None:
        """`memories`: those of the stream, which groups use one after the other."""
        nbytes: Any = self.plan.values[value].type.nbytes
        k = len(self.apart)
        if k == len(memories) or memories[k].nbytes < nbytes:
            memories[k:] = [device.alloc(nbytes, "statistics"), *memories[k + 1 :]]
        self.apart[value] = memories[k]
        self._apart.append(register)

    def choose(self, device: Device) -> None:
        """Decides what is taken within the kernel."""
        step, body = self.step, self.step.attrs["body"]
        types = _types(self.plan, step)
        size: Any = types[-1].size
        if size < LARGE or not self.registers or device.takes is None:
            return
        widest = max(t.itemsize for t in body.types)
        within = [r for r in self.registers if body.types[r].itemsize == widest][:MOST_MEASURED]
        attrs = {"body": body, "registers": tuple(within)}
        if not device.takes(replace(step, op=measured, attrs=attrs), tuple(types)):
            return
        order = sorted(
            zip(self.registers, self.values, strict=True), key=lambda r: r[0] not in within
        )
        self.registers, self.values = map(list, zip(*order, strict=True))
        self.within = len(within)

    def bound(
        self, device: Device, addresses: Sequence[int], gathering: Gathering, first: int
    ) -> tuple[list[Any], list[Any]]:
        """Launches that have to come before the group, and those that stand for its own.
        `addresses`: of the step's operands and results; `first`: the place of the first record.
        """
        step, body = self.step, self.step.attrs["body"]
        values = self.plan.values
        places = [(values[v].type, first + k) for k, (_, v) in enumerate(self.values)]
        within, packed = places[: self.within], places[self.within :]
        stored = self.registers[self.within :]
        before: list[Any] = []
        while sum(padded(t) for t, _ in packed) > ROOM and len(packed) > 1:
            count = self._fitting([t for t, _ in packed])
            before += self._stored_before(
                device, addresses, gathering, packed[:count], stored[:count]
            )
            packed, stored = packed[count:], stored[count:]
        made, left, written = gathering.of_group(within, packed)
        before += made
        types = _types(self.plan, step)
        types += [*(t for t, _ in packed), *(values[v].type for v in self.apart)]
        written += [memory.address for memory in self.apart.values()]
        attrs: dict[str, Any] = {"body": _storing(body, (*stored, *self._apart))}
        op = fused
        if within:
            op = measured
            attrs["registers"] = tuple(self.registers[: self.within])
            types += [t for t, _ in left]
            written += [address for _, address in left]
        launches, _ = device.prepare(replace(step, op=op, attrs=attrs), tuple(types))
        return before, device.bind(launches, [*addresses, *written], 0)

    def _fitting(self, types: Sequence[TensorType]) -> int:
        """How many of these, from the first on, there is room for; one at least."""
        sums = accumulate(map(padded, types))
        return max(sum(nbytes <= ROOM for nbytes in sums), 1)

    def _stored_before(
        self, device: Device, addresses: Sequence[int], gathering: Gathering,
        packed: Sequence[tuple[TensorType, int]], registers: Sequence[int],
    ) -> list[Any]:  # fmt: skip
        """Launches that compute the group for these registers alone, before it is computed: there
        is no room for all at once.
        """
        step, body = self.step, self.step.attrs["body"]
        before, _, written = gathering.of_group([], packed)
        alone = replace(body, results=tuple(registers), updates=(False,) * len(registers))
        count = len(step.operands)
        types = [*_types(self.plan, step)[:count], *(t for t, _ in packed)]
        made, _ = device.prepare(replace(step, attrs={"body": alone}), tuple(types))
        return [*before, *device.bind(made, [*addresses[:count], *written], 0)]


def _types(plan: Plan, step: Step) -> list[TensorType]:
    """Those of operands and results, all of which a group has."""
    return [plan.values[v].type for v in (*step.operands, *step.results) if v is not None]


def _storing(body: Body, registers: Sequence[int]) -> Body:
    """That stores these as well."""
    more = (False,) * len(registers)
    return replace(body, results=(*body.results, *registers), updates=(*body.updates, *more))


def groups_of(
    plan: Plan, recorded: Mapping[int, Sequence[int]], device: Device
) -> dict[int, Group]:
    """The groups of a plan that take statistics of `recorded` (values by step), by step."""
    found: dict[int, Group] = {}
    waiting: dict[int, tuple[int, int]] = {}  # value -> the step that gives it, its stream
    apart: dict[int, list[Memory]] = {}  # by stream
    for instruction in plan.instructions:
        if not isinstance(instruction, Run):
            continue
        number, stream = instruction
        step = plan.steps[number]
        if step.op is not fused:
            waiting |= dict.fromkeys(recorded.get(number, ()), (number, stream))
            continue
        if not step.launches:
            continue
        group = Group(plan, number)
        for register, value in _registers(plan, step):
            origin, there = waiting.get(value, (number, stream))
            if value not in recorded.get(origin, ()) or there != stream:
                continue
            if gathers(plan.values[value].type):
                waiting.pop(value, None)
                group.registers.append(register)
                group.values.append((origin, value))
            elif plan.values[value].buffer < 0:
                group.look_apart(device, register, value, apart.setdefault(stream, []))
        if group.registers or group.apart:
            group.choose(device)
            found[number] = group
    return found


def _registers(plan: Plan, step: Step) -> Iterator[tuple[int, int]]:
    """Registers whose elements are those of a whole tensor, and its value."""
    body, shape = step.attrs["body"], plan.values[step.results[0]].type.shape
    values: list[Any] = [*step.operands]
    values += [m.results[0] for m in step.members if m.op is not update]
    for register, value in enumerate(values):
        t = plan.values[value].type
        whole = t.shape == shape and register not in body.per_channel
        if whole and register != body.status:
            yield register, value


def room_for(groups: Sequence[Group]) -> int:
    """Bytes of the memory that small tensors of these share; the largest one fits."""
    needs = [padded(t) for group in groups for t in group.packed]
    return max(min(sum(needs), ROOM), max(needs, default=0))
