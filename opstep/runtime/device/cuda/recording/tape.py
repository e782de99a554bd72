"""Records a bound plan on a GPU: times by stamps around its ops, statistics by kernels behind them.

While a plan runs nothing is asked of the GPU. Stamps and statistics are copied to the host behind
its last op, and become records when the streams of the run are idle (`PendingRecords.step_done`). A
stretch that is replayed as a graph has them in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from opstep.runtime.device.cuda.driver.launching import BoundGrid, work_of
from opstep.runtime.device.cuda.driver.streams import capturing
from opstep.runtime.device.cuda.recording.gathering import Gathering, gathers
from opstep.runtime.device.cuda.recording.pending import COPIES, Part, PendingActivation
from opstep.runtime.device.cuda.recording.records import merged
from opstep.runtime.device.cuda.recording.stamps import FLAGS, NO_ROW, Marks, Move
from opstep.runtime.device.details import Details
from opstep.runtime.device.external import ExternalMemory
from opstep.runtime.device.protocols import Recorder
from opstep.runtime.device.tape import Tape
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Fill, Run, Step
from opstep.runtime.recording import COPY, Launch, Layout
from opstep.runtime.statistics import ENABLED, WORDS, step_for

if TYPE_CHECKING:
    from opstep.runtime.device.binding import Binding
    from opstep.runtime.device.cuda.device import CudaDevice
    from opstep.runtime.device.cuda.driver.streams import CudaStream
    from opstep.runtime.device.cuda.recording.kernels import Launched
    from opstep.runtime.device.cuda.recording.pending import PendingRecords


_NBYTES = 8 * WORDS  # of a tensor's statistics


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
        values = self._recorded_values()
        self._memory = self._allocated(values)
        self._gathering = [self._gathering_of(s, of_stream) for s, of_stream in enumerate(values)]
        # with statistics and without; the same where there are none
        bare, whole = self._marks_now(), self._marks_now() if self.recorded else None
        self._marks = {False: bare, True: whole or bare}
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
        return Gathering(self.device, types, *places, plan.policy.fill == "nan")

    def unrecorded(self, launches: list[Any]) -> list[tuple[int, Any]]:
        return [(FLAGS, b) for b in launches]

    def around(self, number: int, step: Step, stream: int, bound: Any) -> list[tuple[int, Any]]:
        """The step's launches and those of its statistics, each with its row."""
        rows = self.layout.rows[stream]
        gathering = self._gathering[stream]
        work: list[tuple[int, Any]] = []
        if bound:
            work += [(NO_ROW, b) for b in gathering.before(self._write_ranges(step))]
            work += [(len(rows), b) for b in bound]
            rows.append(number)
            self._bound[stream].append(bound)
        for value in self.recorded.get(number, ()):
            plan = self.binding.plan
            recorded, t = self.layout.stats[stream], plan.values[value].type
            source = self.binding.address_of(value).address
            work += [(NO_ROW, b) for b in self._detailed(t, source, stream)]
            if gathers(t):
                work += [(NO_ROW, b) for b in gathering.add(source, t, len(recorded))]
                recorded.append((number, value))
                continue
            launches, nbytes = self.device.prepare(*step_for(t, plan.policy.fill == "nan"))
            target = self._memory.statistics(stream, len(recorded))
            addresses = [source, self._memory.enabled.address, target]
            statistics = self.device.bind(
                launches, addresses, self._memory.workspace(stream, nbytes)
            )
            work += [(NO_ROW, b) for b in statistics]
            recorded.append((number, value))
        if not bound:  # nothing else may have this launched
            work += [(NO_ROW, b) for b in gathering.flush()]
        return work

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

    def launch(self, stream: int, launches: list[tuple[int, Any]]) -> Callable[[], None]:
        gathering = self._gathering[stream]
        launches = [*launches, *((NO_ROW, b) for b in (*gathering.flush(), *gathering.merge()))]
        self._launches.append(self._rows_launched(stream))
        index = len(self._launches) - 1
        bare = [launch for launch in launches if launch[0] != NO_ROW]
        bundle = self._bundle(stream, lambda m, stats: m.around(launches if stats else bare))
        issue = partial(self._issue, bundle, index, self._streams[stream])
        self._indices[id(issue)] = index
        return issue

    def fill(self, stream: int, work: Any, nbytes: int) -> Callable[[], None]:
        bundle = self._bundle(stream, lambda m, _: m.around_fill(work, nbytes))
        handle = self._streams[stream].handle
        return lambda: bundle.of(self.with_stats)(handle)

    def _bundle(self, stream: int, stamped: Callable[[Marks, bool], list[Any]]) -> Bundle:
        """Of what `stamped` makes for steps without statistics and with them."""
        bare, whole = (self._marks[with_stats][stream] for with_stats in (False, True))
        return Bundle(stamped(bare, False), None if whole is bare else stamped(whole, True))

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

    def begin(self, recorder: Recorder, step: int, with_stats: bool) -> None:
        self.with_stats = with_stats
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
        pending, handle = self._now, self._streams[stream].handle
        copies, around = pending.copies[stream], self._copies[stream]
        if len(copies) == COPIES:
            work(handle)
            return
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
        pending = self._now
        pending.with_stats = self.with_stats
        pending.marks = self._marks[self.with_stats]
        for stream, part in enumerate(self._memory.parts):
            copies = len(pending.copies[stream])
            words = part.stamps + 2 * copies if copies else pending.marks[stream].count
            words = part.words if self.with_stats and part.statistics else words
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
        bundle.of(self.with_stats)(stream.handle)
        if capturing.stretch is None:
            self._now.launches[self._places[index]] = began, monotonic_ns()

    def replay(self, stretch: Stretch, launch: Callable[[], None]) -> None:
        began = monotonic_ns()
        launch()
        if stretch.launches:
            self._now.launches[self._places[stretch.launches[0]]] = began, monotonic_ns()


class Bundle:
    """What is handed over at once, in steps with statistics (`whole`) and without (`bare`)."""

    __slots__ = ("_bare", "_whole", "bound")

    def __init__(self, bare: list[Any], whole: list[Any] | None):
        self.bound = bare if whole is None else whole
        self._bare = work_of(bare)
        self._whole = self._bare if whole is None else work_of(whole)

    def of(self, with_stats: bool) -> Callable[[int], None]:
        return self._whole if with_stats else self._bare


class _RecordMemory:
    """Where on the GPU a tape's stamps and statistics are written."""

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
        self._memory = device.alloc(8 * sum(p.words for p in parts), what)
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
        self._issued: set[bool] = set()  # once, as they are: they are graphs from then on

    @property
    def variant(self) -> bool:
        """Whether statistics are taken now."""
        return self.tape.with_stats

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
