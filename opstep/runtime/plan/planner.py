"""Makes a plan of a verified graph, for concrete sizes and one policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

from opstep.runtime.ir.calls import mismatch_span
from opstep.runtime.ir.collector import collector_paused
from opstep.runtime.ir.diagnostics import Note, OpstepError
from opstep.runtime.ir.graph import Apply, Module
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import TensorType
from opstep.runtime.ir.verified import Verified
from opstep.runtime.plan import fusing, memory
from opstep.runtime.plan.cost import LEAST_GAIN, WORTH_NS
from opstep.runtime.plan.epilogues import with_epilogues
from opstep.runtime.plan.flat import Flat, in_one_stream
from opstep.runtime.plan.fusing import with_fused
from opstep.runtime.plan.internal import Asserts
from opstep.runtime.plan.layouts import with_layouts
from opstep.runtime.plan.lower import Enters, lower
from opstep.runtime.plan.ordering import WORTH_BYTES, deferred, sunk
from opstep.runtime.plan.packing import FOREVER, pack, rounded
from opstep.runtime.plan.plan import (
    Alloc,
    Buffer,
    Call,
    Fill,
    Free,
    Fuse,
    Instruction,
    Plan,
    Policy,
    Record,
    Run,
    Step,
    Sync,
    Takes,
    Value,
    Wait,
)
from opstep.runtime.plan.repeats import bytes_computed_again, computed_once
from opstep.runtime.plan.room import frugal_schedule
from opstep.runtime.plan.schedule import Preds, clocks, dependencies, schedule
from opstep.runtime.plan.viewing import with_views, without_idle_moves

_LITTLE = 0.01  # of the arena: a program that computes less than that again saves no memory

# What a device makes of a step, given the types of its operands as stored, then of its results:
# launches, and the bytes of working memory that they need.
Prepare = Callable[[Step, tuple[TensorType | None, ...]], tuple[Any, int]]


def make_plan(
    verified: Verified | Module,
    graph: str,
    input_types: Sequence[TensorType],
    policy: Policy,
    prepare: Prepare | None = None,
    library: Sequence[Module] = (),
    asserts: Asserts | None = None,
    carried: bool = False,
    fuse: Fuse = Fuse.NOTHING,
    pace: int = 1,
    fills: Callable[[Any], bool] | None = None,
    takes: Takes | None = None,
    enters: Enters | None = None,
) -> Plan:
    """The plan of a graph for inputs of these concrete types (see `lower`), under a policy.

    `prepare` is the device's; without it steps have no launches. `carried`: the graph is the body
    of a loop, which carries values in the places of its inputs: an output may take over those of
    its own input. `fuse`: the ops that may be joined; none where the policy keeps single results.
    `pace`, `fills` and `takes`: those of the device. `enters`: as for `lower`.
    """
    with collector_paused():
        flat = lower(verified, graph, input_types, library, asserts, enters)
        if policy.alloc == "reuse":
            flat = _ordered(flat)
        if policy != replace(policy, alloc="reuse", fill="none", sync="none"):
            fuse = Fuse.NOTHING
        joined = _joined(flat, takes, fuse) if fuse else flat
        if prepare is not None:
            _prepare(joined, prepare)
        joined.costs = _paced(joined, pace)
        filled = bool(fuse) and fills is not None and _filled(joined, fills)
        plan = _planner(joined, policy, carried, flat, filled).plan()
    if joined is not flat and bytes_computed_again(flat):  # memory comes first
        one_by_one = make_plan(
            verified, graph, input_types, policy, prepare, library, asserts, carried, pace=pace,
            fills=fills, enters=enters,
        )  # fmt: skip
        return plan if plan.arena <= one_by_one.arena else one_by_one
    return plan


def _ordered(flat: Flat) -> Flat:
    """The graph with its steps in an order that takes less memory, for a policy that reuses it."""
    flat = deferred(flat) if flat.commits else flat
    return sunk(flat) if sum(flat.sizes) >= WORTH_BYTES else flat


def _joined(flat: Flat, takes: Takes | None, fuse: Fuse) -> Flat:
    """The graph with several ops as one step."""
    one_by_one = fuse == Fuse.ELEMENTWISE  # each op's result is recorded
    moves = not one_by_one and any(step.op.shows is not None for step in flat.steps)
    flat = without_idle_moves(flat) if moves else flat
    # a group gains less than what all steps take
    flat = with_fused(flat) if sum(flat.costs) >= fusing.WORTH_A_KERNEL_NS else flat
    flat = with_views(flat, takes) if moves else flat
    if takes is None or one_by_one:
        return flat
    return with_epilogues(with_layouts(flat, takes), takes)


def _paced(flat: Flat, pace: int) -> list[int]:
    """Costs on a device of that pace, but for those of control flow, which the host runs."""
    times = zip(flat.steps, flat.costs, strict=True)
    return [t if step.op.traits.host else max(1, t // pace) for step, t in times]


def _filled(flat: Flat, fills: Callable[[Any], bool]) -> bool:
    """Whether steps that occupy the whole device take nearly all of the time, so that nothing could
    run beside them on other streams.
    """
    pairs = zip(flat.steps, flat.costs, strict=True)
    others = sum(t for step, t in pairs if step.launches is None or not fills(step.launches))
    return others <= LEAST_GAIN * sum(flat.costs)


def memory_computed_once(flat: Flat, policy: Policy) -> int:
    """Bytes of the arena if lines that compute something again were left out."""
    return _Planner(_ordered(computed_once(flat)), policy, policy.streams, False).arena


def _planner(flat: Flat, policy: Policy, carried: bool, text: Flat, filled: bool) -> _Planner:
    """With one stream where the device is `filled` anyway, and where that takes less memory and the
    program, whose steps one by one are `text`, saves memory by computing values again.
    """
    planner = _Planner(flat, policy, 1 if filled else policy.streams, carried)
    again = bytes_computed_again(text) if planner.times and policy.alloc == "reuse" else 0
    if not again:
        return planner
    one = _Planner(flat, policy, 1, carried)
    return one if one.arena < planner.arena and again > _LITTLE * one.arena else planner


def prepared(
    verified: Verified | Module,
    graph: str,
    input_types: Sequence[TensorType],
    prepare: Prepare | None = None,
    library: Sequence[Module] = (),
    asserts: Asserts | None = None,
) -> Flat:
    """The steps of a graph, with launches, before they are scheduled."""
    flat = lower(verified, graph, input_types, library, asserts)
    if prepare is not None:
        _prepare(flat, prepare)
    return flat


def _prepare(flat: Flat, prepare: Prepare) -> None:
    """Asks the device for each step's launches; their working memory becomes a buffer."""
    for step in flat.steps:
        if step.op.traits.host or step.op.traits.reinterprets:
            continue
        try:
            step.launches, workspace = prepare(step, flat.stored(step))
        except Mismatch as error:
            raise _refused(flat, step, error) from None
        if workspace:
            step.workspace = flat.add_buffer("temp", workspace)


def _refused(flat: Flat, step: Step, error: Mismatch) -> OpstepError:
    """A device's error about a step, at the step's place, with the calls that led there."""
    statement, frame = step.statement, flat.frames[step.frame]
    span = mismatch_span(statement, error) if isinstance(statement, Apply) else statement.span
    source = frame.source
    notes = []
    while isinstance(frame.statement, Apply):
        callee, frame = frame.statement.callee, flat.frames[frame.parent]
        notes.append(Note("called here", callee.span, frame.source))
    return OpstepError(error.message, span=span, source=source, hint=error.hint, notes=tuple(notes))


class _Planner:
    def __init__(self, flat: Flat, policy: Policy, streams: int, carried: bool):
        self.flat = flat
        self.policy = policy
        self.carried = carried
        streams = streams if sum(flat.costs) >= WORTH_NS else 1  # else no step is worth another
        self.preds: Preds = dependencies(flat) if streams > 1 else []
        self.schedule, self.times = in_one_stream(len(flat.steps)), None
        if streams > 1:
            found = schedule(flat.costs, self.preds, streams, flat.commits, talks=flat.talks)
            if policy.alloc == "reuse" and found[1] is not None:
                found = frugal_schedule(flat, self.preds, streams, found)
            self.schedule, self.times = found
        self.offsets: dict[int, int] = {}
        self.deaths: dict[int, list[int]] = {}
        self.storage: Sequence[int] = range(len(flat.kinds))
        self.arena = self.peak = 0
        reuses = policy.alloc == "reuse"
        self.edges: dict[int, list[int]] = self._share_memory() if reuses else {}
        self.first_writes = self._first_writes()
        if not reuses:  # every temp buffer has its own bytes to the end of the run
            allocated = chain.from_iterable(self.first_writes.values())
            self.peak = sum(rounded(flat.sizes[b]) for b in allocated)

    def plan(self) -> Plan:
        times, edges = self.times, self.edges
        waits: dict[int, tuple[int, ...]] = {}
        if times is not None and self.policy.sync != "op":
            waits = (clocks(self.schedule, self.preds, edges) if edges else times).waits
        numbers = self._number_buffers()
        homes = [numbers[self.storage[b]] for b in self.flat.homes]
        return self._assemble(homes, numbers, waits)

    # --- memory ---

    def _share_memory(self) -> dict[int, list[int]]:
        """Packs the temp buffers; the result are the edges that sharing makes necessary."""
        flat, times = self.flat, self.times
        found = memory.live_ranges(flat, self.schedule, self.carried)
        self.storage = found.storage
        touched = None if times is None else memory.users(flat, self.schedule, found.storage)
        packing = pack(memory.blocks(flat, self.schedule, found, times, touched))
        self.offsets = dict(zip(found.allocated, packing.offsets, strict=True))
        self.arena, self.peak = packing.arena, packing.peak
        for b in found.allocated:
            if found.last[b] != FOREVER:
                self.deaths.setdefault(found.last[b], []).append(b)
        return memory.sharing_edges(flat, found, touched, self.offsets) if touched else {}

    def _number_buffers(self) -> list[int]:
        """New ids for the buffers that are left; -1 for those that have the bytes of another, or
        none.
        """
        numbers, count = [], 0
        for b, owner in enumerate(self.storage):
            stays = b == owner and self.flat.kinds[b] != "none"
            numbers.append(count if stays else -1)
            count += stays
        return numbers

    # --- instructions ---

    def _assemble(self, homes: list[int], numbers: list[int], waits) -> Plan:
        flat = self.flat
        events: dict[int, int] = {}
        if waits:
            recorded = {p for sources in waits.values() for p in sources}
            for i in self.schedule.order:
                if i in recorded:
                    events[i] = len(events)
        instructions = self._instructions(numbers, waits, events)
        for step in flat.steps:
            _note_buffers(step, homes, numbers)
        columns = zip(flat.names, flat.types, homes, flat.frame_of, strict=True)
        values: Any = list(
            map(tuple.__new__, repeat(Value), columns)
        )  # without `Value.__new__`: fast
        streams = tuple(range(self.schedule.streams))
        return Plan(
            graph=flat.graph,
            policy=self.policy,
            values=values,
            buffers=self._buffers(),
            steps=flat.steps,
            frames=flat.frames,
            inputs=flat.inputs,
            outputs=flat.outputs,
            instructions=instructions,
            streams=self.schedule.streams,
            events=len(events),
            arena=self.arena,
            peak=self.peak,
            start=streams,
            finish=streams,
            scopes=flat.scopes,
            commits=flat.commits,
            early=self._early(numbers),
            foreign=tuple(k for k, s in enumerate(flat.steps) if s.op.traits.foreign),
            unread=self._unread(),
        )

    def _unread(self) -> frozenset[int]:
        """Results of control flow that nothing reads."""
        steps = self.flat.steps
        made = {v for s in steps if s.op.traits.host for v in s.results}
        made.difference_update(self.flat.outputs)
        for step in steps if made else ():
            made.difference_update(step.operands)
        return frozenset(made)

    def _early(self, numbers: list[int]) -> tuple[str, ...]:
        """Named tensors that steps change before the commits."""
        flat = self.flat
        labels = {numbers[b]: n for b, n in flat.labels.items() if flat.kinds[b] == "param"}
        steps = flat.steps[: len(flat.steps) - flat.commits]
        return tuple(dict.fromkeys(labels[b] for s in steps for b in s.writes if b in labels))

    def _buffers(self) -> list[Buffer]:
        flat, offsets = self.flat, self.offsets
        return [
            Buffer(
                kind,
                flat.sizes[b],
                offsets.get(b, -1),
                flat.labels.get(b, ""),
                flat.literals.get(b),
            )
            for b, kind in enumerate(flat.kinds)
            if self.storage[b] == b and kind != "none"
        ]

    def _instructions(self, numbers, waits, events) -> list[Instruction]:
        """In order of issue; for each step: Alloc, Wait, Fill, Run or Call, Sync, Record, Free."""
        flat, stream = self.flat, self.schedule.stream
        fill, sync = self.policy.fill == "nan", self.policy.sync == "op"
        out: list[Instruction] = []
        add = out.append
        for i in self.schedule.order:
            s = stream[i]
            step = flat.steps[i]
            new = self.first_writes.get(i, ())
            for b in new:
                add(Alloc(numbers[b], s))
            for p in waits.get(i, ()):
                add(Wait(events[p], s))
            if fill:
                for b in new:
                    add(Fill(numbers[b], s))
            add(Call(i, s) if step.op.traits.host else Run(i, s))
            if sync:
                add(Sync(s))
            if i in events:
                add(Record(events[i], s))
            for b in self.deaths.get(i, ()):
                add(Free(numbers[b], s))
        return out

    def _first_writes(self) -> dict[int, list[int]]:
        """The temp buffers with bytes of their own that each step writes first."""
        flat, storage = self.flat, self.storage
        found: dict[int, list[int]] = {}
        for i, step in enumerate(flat.steps):
            written = [flat.homes[v] for v in step.values_written]
            new = [b for b in written if flat.kinds[b] == "temp" and storage[b] == b]
            new += [step.workspace] if step.workspace >= 0 else []
            if new:
                found[i] = new
        return found


def _note_buffers(step: Step, homes: list[int], numbers: list[int]) -> None:
    """Fills in what the step reads and writes, under the final ids of buffers."""
    step.reads = tuple(dict.fromkeys([homes[v] for v in step.values_read]))
    writes = [homes[v] for v in step.values_written]
    if step.workspace >= 0:
        step.workspace = numbers[step.workspace]
        writes.append(step.workspace)
    step.writes = tuple(writes)
