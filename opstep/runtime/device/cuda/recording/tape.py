"""Records a bound plan on a GPU: times by stamps around its ops, statistics by kernels behind them.

While a plan runs nothing is asked of the GPU. Stamps and statistics are copied to the host behind
its last op, and become records when the streams of the run are idle (`PendingRecords.step_done`). A
stretch that is replayed as a graph has them in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from opstep.runtime.device.cuda.driver.launching import BoundGrid, work_of
from opstep.runtime.device.cuda.driver.streams import capturing
from opstep.runtime.device.cuda.recording.gathering import Gathering, gathers
from opstep.runtime.device.cuda.recording.measuring import Group, groups_of, room_for
from opstep.runtime.device.cuda.recording.pending import COPIES, Part, PendingActivation
from opstep.runtime.device.cuda.recording.records import merged
from opstep.runtime.device.cuda.recording.stamps import FLAGS, NO_ROW, Marks, Move
from opstep.runtime.device.details import Details
from opstep.runtime.device.external import ExternalMemory
from opstep.runtime.device.protocols import Recorder
from opstep.runtime.device.tape import Tape
from opstep.runtime.ir.types import TensorType, i64
from opstep.runtime.plan.plan import Fill, Run, Step
from opstep.runtime.recording import COPY, Launch, Layout, Taken
from opstep.runtime.statistics import ENABLED, WORDS, step_for

if TYPE_CHECKING:
    from opstep.runtime.device.binding import Binding
    from opstep.runtime.device.cuda.device import CudaDevice
    from opstep.runtime.device.cuda.driver.streams import CudaStream
    from opstep.runtime.device.cuda.recording.kernels import Launched
    from opstep.runtime.device.cuda.recording.pending import PendingRecords


_NBYTES = 8 * WORDS  # of a tensor's statistics


class Work(NamedTuple):
    """A launch of a row, in steps without statistics and in those with them; None where none is."""

    row: int
    bare: Any
    whole: Any


def statistics(launches: Iterable[Any]) -> list[Work]:
    return [Work(NO_ROW, None, b) for b in launches]


class CudaTape(Tape):
    """Of a GPU's binding."""

    def __init__(
        self,
        device: CudaDevice,
        binding: Binding,
        recorder: Recorder,
        pending_records: PendingRecords,
    ):
        super().__init__(binding, recorder)
        self.device = device
        self._streams = cast("Sequence[CudaStream]", binding.streams)  # as the device made them
        self._pending_records = pending_records
        self._details = Details(device, recorder)
        self._groups = groups_of(binding.plan, self.recorded, device)
        self._of_groups = {v for group in self._groups.values() for _, v in group.values}
        values = self._recorded_values()
        self._memory = self._allocated(values)
        self._gathering = [self._gathering_of(s, of_stream) for s, of_stream in enumerate(values)]
        # with statistics and without; the same where there are none
        bare, whole = self._marks_now(), self._marks_now() if self.recorded else None
        self._marks = {False: bare, True: whole or bare}
        self._left = self._still_to_come()
        self._copies: list[list[tuple[Any, Any]]] = [[] for _ in values]  # stamps around each
        self._bound: list[list[list[Any]]] = [[] for _ in values]  # each row's, until described
        self._launches: list[Launch] = []
        self._indices: dict[int, int] = {}  # of launches, by id of what makes them
        self._stretches: list[Stretch] = []
        self._layouts: dict[tuple[bool, ...], tuple[Layout, list[int]]] = {}
        self._places: list[int] = []  # of launches in the layout of this activation
        self._pending: PendingActivation | None = None
        self._next: PendingActivation | None = None  # made while the GPU has something to do
        self._in_graph = False  # all of this activation is one, launched on the first stream

    # --- while the plan is bound ---

    def _recorded_values(self) -> list[list[int]]:
        """By stream, the values whose statistics are taken."""
        by_stream: list[list[int]] = [[] for _ in self.layout.rows]
        for instruction in self.binding.plan.instructions:
            if isinstance(instruction, Run):
                by_stream[instruction.stream] += self.recorded.get(instruction.step, ())
        return by_stream

    def _still_to_come(self) -> list[int]:
        """Of each stream the steps that are not issued yet; updates at the end may never be."""
        plan, left = self.binding.plan, [0] * len(self.layout.rows)
        for instruction in plan.instructions:
            if isinstance(instruction, Run) and instruction.step < len(plan.steps) - plan.commits:
                left[instruction.stream] += 1
        return left

    def _allocated(self, values: Sequence[Sequence[int]]) -> _RecordMemory:
        plan = self.binding.plan
        stamps = [0] * len(values)
        for instruction in plan.instructions:
            if isinstance(instruction, Run | Fill):
                stamps[instruction.stream] += 2
        types = [[plan.values[v].type for v in of_stream] for of_stream in values]
        details = [sum(map(self._details.nbytes, of_stream)) for of_stream in types]
        return _RecordMemory(self.device, stamps, list(map(len, types)), details)

    def _marks_now(self) -> list[Marks]:
        return [Marks(self.device, part.address) for part in self._memory.parts]

    def _gathering_of(self, stream: int, values: Sequence[int]) -> Gathering:
        plan, memory = self.binding.plan, self._memory
        types = [plan.values[v].type for v in values]
        places = (memory.enabled.address, memory.statistics(stream, 0))
        runs = [i for i in plan.instructions if isinstance(i, Run) and i.stream == stream]
        groups = [self._groups[i.step] for i in runs if i.step in self._groups]
        return Gathering(self.device, types, *places, plan.policy.fill == "nan", room_for(groups))

    def unrecorded(self, launches: list[Any]) -> list[Work]:
        return [Work(FLAGS, b, b) for b in launches]

    def around(self, number: int, step: Step, stream: int, bound: Any) -> list[Work]:
        """The step's launches and those of its statistics, each with its row."""
        rows = self.layout.rows[stream]
        gathering = self._gathering[stream]
        work: list[Work] = []
        if bound:
            work += statistics(gathering.before(self._write_ranges(step)))
            work += self._of_step(number, step, stream, bound)
            rows.append(number)
            self._bound[stream].append(bound)
        plan, group = self.binding.plan, self._groups.get(number)
        for value in self.recorded.get(number, ()):
            if value in self._of_groups:
                continue
            recorded, t = self.layout.stats[stream], plan.values[value].type
            source = self._source(value, group)
            work += statistics(self._detailed(t, source, stream))
            if gathers(t):
                work += statistics(gathering.add(source, t, len(recorded)))
                recorded.append((number, value))
                continue
            launches, nbytes = self.device.prepare(*step_for(t, plan.policy.fill == "nan"))
            target = self._memory.statistics(stream, len(recorded))
            addresses = [source, self._memory.enabled.address, target]
            workspace = self._memory.workspace(stream, nbytes)
            work += statistics(self.device.bind(launches, addresses, workspace))
            recorded.append((number, value))
        self._left[stream] -= number < len(plan.steps) - plan.commits
        if not bound:  # nothing else may have this launched
            work += statistics(self._gathered(stream))
        return work

    def _gathered(self, stream: int) -> list[Any]:
        """What is to be launched before others may write over what waits; at last, all."""
        gathering = self._gathering[stream]
        if self._left[stream] > 0:
            return gathering.flush(packed=False)
        return [*gathering.flush(), *gathering.merge()]

    def _source(self, value: int, group: Group | None) -> int:
        """The address of a value whose statistics are taken behind a step."""
        if group and value in group.apart:
            return group.apart[value].address
        empty = not self.binding.plan.values[value].type.size
        return 0 if empty else self.binding.address_of(value).address

    def _of_step(self, number: int, step: Step, stream: int, bound: list[Any]) -> list[Work]:
        """Its launches; those of a group that takes statistics are others in steps with them."""
        row, group = len(self.layout.rows[stream]), self._groups.get(number)
        if group is None:
            return [Work(row, b, b) for b in bound]
        recorded, values = self.layout.stats[stream], (*step.operands, *step.results)
        addresses = [self.binding.address_of(v).address for v in values if v is not None]
        before, whole = group.bound(self.device, addresses, self._gathering[stream], len(recorded))
        recorded += group.values
        own = len(step.launches)  # what is behind them looks for NaNs
        return [
            *statistics(before),
            *(Work(row, b, None) for b in bound[:own]),
            *(Work(row, None, w) for w in whole),
            *(Work(row, b, b) for b in bound[own:]),
        ]

    def _detailed(self, t: TensorType, source: int, stream: int) -> list[Any]:
        memory = self._memory
        workspace = memory.workspace(stream, self._details.workspace(t))
        target = memory.details[stream]
        memory.details[stream] += self._details.nbytes(t)
        return self._details.bound(t, [source, memory.enabled.address, target], workspace)

    def _write_ranges(self, step: Step) -> list[tuple[int, int]]:
        """The addresses that a step writes: from, to."""
        places, buffers = self.binding.places, self.binding.plan.buffers
        return [(places[b].address, places[b].address + buffers[b].nbytes) for b in step.writes]

    def launch(self, stream: int, launches: list[Work]) -> Callable[[], None]:
        launches = [*launches, *statistics(self._gathered(stream))]
        self._launches.append(self._rows_launched(stream))
        index = len(self._launches) - 1
        bare = [(work.row, work.bare) for work in launches if work.bare is not None]
        whole = [(work.row, work.whole) for work in launches if work.whole is not None]
        alone = [launch for _, launch in bare]
        bundle = self._bundle(stream, alone, lambda m, stats: m.around(whole if stats else bare))
        issue = partial(self._issue, bundle, index, self._streams[stream])
        self._indices[id(issue)] = index
        return issue

    def fill(self, stream: int, work: Any, nbytes: int) -> Callable[[], None]:
        bundle = self._bundle(stream, [work], lambda m, _: m.around_fill(work, nbytes))
        handle = self._streams[stream].handle
        return lambda: bundle.of(self.taken)(handle)

    def _bundle(
        self, stream: int, bare: list[Any], stamped: Callable[[Marks, bool], list[Any]]
    ) -> Bundle:
        """Of what `stamped` makes for steps without statistics and with them. `bare`: without
        stamps.
        """
        timed, whole = (self._marks[with_stats][stream] for with_stats in (False, True))
        made = stamped(timed, False)
        return Bundle(made, made if whole is timed else stamped(whole, True), bare)

    def bound(self) -> None:
        self.layout.launches += self._launches
        ours = self.device.launched
        self._let_pass(lambda launch: ours(launch) if isinstance(launch, BoundGrid) else None)

    def stretch(self, code: Sequence[Any], alone: bool) -> Stretch:
        """What is to be notified of how a stretch is launched. A library may have to load something
        when it is first called, which no capture allows; what is bound for one run is not worth it.
        """
        launched = [c for c in code if id(c) in self._indices]
        bundles = [c.args[0] for c in launched]
        ours = all(isinstance(b, BoundGrid) for bundle in bundles for b in bundle.bound)
        at_once = ours and not self._is_bound_for_one_run()
        indices = [self._indices[id(c)] for c in launched]
        self._stretches.append(Stretch(self, indices, alone, at_once))
        return self._stretches[-1]

    def _is_bound_for_one_run(self) -> bool:
        plan, places = self.binding.plan, self.binding.places
        given = (places[plan.values[v].buffer].memory for v in plan.inputs)
        return plan.policy.alloc == "fresh" or any(isinstance(m, ExternalMemory) for m in given)

    # --- while it runs ---

    @property
    def _now(self) -> PendingActivation:
        assert self._pending is not None  # an activation began
        return self._pending

    def begin(self, recorder: Recorder, step: int, taken: Taken) -> None:
        self.taken = Taken(taken)
        if taken == Taken.NOTHING:
            self._sync_times = np.zeros((len(self.layout.syncs), 2), np.int64)
            self._call_times = np.zeros((len(self.layout.calls), 2), np.int64)
            return
        layout, self._places = self._layout_now()
        self._in_graph = any(s.alone and s.replayed for s in self._stretches)
        pending = self._next
        if pending is None or pending.layout is not layout:
            pending = PendingActivation(layout, self._memory.parts)
        self._pending, self._next = pending, None
        pending.activation = self._activate(recorder, step, layout)
        self._sync_times, self._call_times = self._pending.syncs, self._pending.calls

    def _layout_now(self) -> tuple[Layout, list[int]]:
        """What is recorded of a run in which some stretches are replayed; where launches are."""
        replayed = tuple(stretch.replayed for stretch in self._stretches)
        if replayed not in self._layouts:
            groups = [s.launches for s in self._stretches if s.replayed]
            launches, places = merged(self._launches, groups)
            a = self.layout
            layout = Layout(a.plan, a.rows, a.stats, launches, a.waits, a.syncs, a.calls, a.kernels)
            self._layouts[replayed] = layout, places
        return self._layouts[replayed]

    def copy(self, stream: int, work: Any, nbytes: int) -> None:
        handle = self._streams[stream].handle
        if self.taken == Taken.NOTHING or len(self._now.copies[stream]) == COPIES:
            work(handle)
            return
        copies, around = self._now.copies[stream], self._copies[stream]
        first = self._memory.parts[stream].stamps + 2 * len(copies)
        if len(copies) == len(around):
            address = self._memory.parts[stream].address
            stamps = (self.device.stamp(address + 8 * k) for k in (first, first + 1))
            around.append(tuple(map(work_of, stamps)))
        before, behind = around[len(copies)]
        copies.append(Move(first, first + 1, nbytes, COPY))
        before(handle)
        work(handle)
        behind(handle)

    def finish(self) -> None:
        if self.taken == Taken.NOTHING:
            return
        pending = self._now
        pending.with_stats = self.taken == Taken.STATISTICS
        pending.marks = self._marks[pending.with_stats]
        for stream, part in enumerate(self._memory.parts):
            copies = len(pending.copies[stream])
            words = part.stamps + 2 * copies if copies else pending.marks[stream].count
            words = part.words if pending.with_stats and part.statistics else words
            if words:
                slot = self._pending_records.slots.get(words)
                home = self._streams[0 if self._in_graph else stream]
                self.device.read_later(part.address, slot, 8 * words, home.handle)
                pending.words[stream] = slot
        self._describe()
        self._pending_records.add(self.recorder, pending)
        self._pending, self._next = None, PendingActivation(pending.layout, pending.parts)

    def _describe(self) -> None:
        """Once, behind the first run: what was launched."""
        if not any(self._bound):
            return
        known: dict[int, Sequence[Launched]] = {}
        for stream, rows in enumerate(self._bound):
            for row, bound in enumerate(rows):
                known |= {id(b): self.device.launched(b) for b in bound}
                if found := [one.kernel for b in bound for one in known[id(b)]]:
                    self.layout.kernels[stream, row] = tuple(found)
            rows.clear()
        self._let_pass(lambda launch: known.get(id(launch)))

    def _let_pass(self, launched: Callable[[Any], Sequence[Launched] | None]) -> None:
        """Which stamps need not be waited for, where what follows them is known."""
        for marks in (*self._marks[False], *self._marks[True]):
            unknown = []
            for stamp, launch in marks.followed:
                found = launched(launch)
                stamp.aside = bool(found) and all(one.fits for one in found)
                if found is None:
                    unknown.append((stamp, launch))
            marks.followed = unknown

    def _issue(self, bundle: Bundle, index: int, stream: CudaStream) -> None:
        began = monotonic_ns()
        bundle.of(self.taken)(stream.handle)
        if capturing.stretch is None and self.taken != Taken.NOTHING:
            self._now.launches[self._places[index]] = began, monotonic_ns()

    def replay(self, stretch: Stretch, launch: Callable[[], None]) -> None:
        began = monotonic_ns()
        launch()
        if stretch.launches and self.taken != Taken.NOTHING:
            self._now.launches[self._places[stretch.launches[0]]] = began, monotonic_ns()


class Bundle:
    """What is handed over at once: with stamps, with statistics as well, or with neither."""

    __slots__ = ("_works", "bound")

    def __init__(self, timed: list[Any], whole: list[Any], bare: list[Any]):
        self.bound = whole
        work = work_of(timed)
        self._works = work, work if whole is timed else work_of(whole), work_of(bare)

    def of(self, taken: Taken) -> Callable[[int], None]:
        return self._works[taken]


class _RecordMemory:
    """Memory on the GPU for a tape's stamps and statistics."""

    def __init__(
        self, device: CudaDevice, stamps: Sequence[int], counts: Sequence[int],
        detail_bytes: Sequence[int],
    ):  # fmt: skip
        self._device = device
        what = "records"
        self.enabled = device.alloc(ENABLED.nbytes, what)
        device.write(self.enabled, 0, ENABLED, 1)  # where they are not, nothing is launched
        streams = zip(stamps, counts, detail_bytes, strict=True)
        parts = [Part(0, s, n * WORDS, nbytes // 8) for s, n, nbytes in streams]
        words = sum(p.words for p in parts)
        self._memory = device.alloc(8 * words, what)
        if words:  # all of it is copied out, also what is kept for copies that no step makes
            device.write(self._memory, 0, TensorType(i64, (words,)), np.zeros(words, np.int64))
        starts = np.cumsum([0, *(8 * p.words for p in parts)]) + self._memory.address
        self.parts = [p._replace(address=int(a)) for p, a in zip(parts, starts, strict=False)]
        # of each stream, where the next one's are written
        self.details = [p.address + 8 * (p.before + p.statistics) for p in self.parts]
        self._workspaces: list[list[Any]] = [[] for _ in parts]

    def statistics(self, stream: int, index: int) -> int:
        part = self.parts[stream]
        return part.address + 8 * part.before + index * _NBYTES

    def workspace(self, stream: int, nbytes: int) -> int:
        """Memory that the statistics of a stream share; a larger one for those that need more."""
        workspaces = self._workspaces[stream]
        if nbytes and (not workspaces or workspaces[-1].nbytes < nbytes):
            workspaces.append(self._device.alloc(nbytes, "statistics"))
        return workspaces[-1].address if workspaces else 0


# --- captured stretches ---------------------------------------------------------------------------


class Stretch:
    """A stretch of a recorded plan, which `graphs.Replay` notifies of what becomes of it."""

    def __init__(self, tape: CudaTape, launches: list[int], alone: bool, at_once: bool):
        self.tape = tape
        self.launches = launches
        self.alone = alone
        self.at_once = at_once
        self._issued: set[Taken] = set()  # once, as they are: they are graphs from then on

    @property
    def variant(self) -> Taken:
        return self.tape.taken

    @property
    def replayed(self) -> bool:
        return self.at_once or self.variant in self._issued

    def issued(self) -> None:
        self._issued.add(self.variant)

    def moved(self) -> None:
        self.at_once = False
        self._issued.clear()

    def replay(self, launch: Callable[[], None]) -> None:
        self.tape.replay(self, launch)
