"""Records a bound plan on a GPU: times as CUPTI or events tell them, statistics by kernels behind
their ops.

While a plan runs nothing is asked of the GPU. What was launched is noted (`PendingActivation`);
when all streams of the run are idle (`PendingRecords.step_done`), the reports are fetched and
become records. A stretch that is replayed as a graph is recorded as that: one launch, whose kernels
are known by their nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from opstep.runtime.device.cuda.driver.launching import BoundGrid, work_of
from opstep.runtime.device.cuda.recording.gathering import Gathering, gathers
from opstep.runtime.device.cuda.recording.pending import PendingActivation
from opstep.runtime.device.cuda.recording.records import FLAGS, MOVED, NO_ROW, Nodes, Part, merged
from opstep.runtime.device.details import Details
from opstep.runtime.device.protocols import Recorder
from opstep.runtime.device.tape import Tape
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Run, Step
from opstep.runtime.recording import Launch, Layout
from opstep.runtime.statistics import ENABLED, WORDS, step_for

if TYPE_CHECKING:
    from opstep.runtime.device.binding import Binding
    from opstep.runtime.device.cuda.device import CudaDevice
    from opstep.runtime.device.cuda.driver.streams import CudaStream
    from opstep.runtime.device.cuda.recording.pending import PendingRecords


_NBYTES = 8 * WORDS  # of a tensor's statistics


class Piece:
    """Work for a stream whose kernels are timed on their own."""

    __slots__ = ("part", "work")

    def __init__(self, stream: int, rows: Sequence[int], bound: Sequence[Any], exact: bool):
        self.part = Part(stream, tuple(rows), exact)
        self.work = work_of(bound)


def pieces(stream: int, launches: Sequence[tuple[int, Any]]) -> list[Piece]:
    """Kernels of ours in a row are one piece; of what a library runs, it is not known how many
    kernels that has. `launches`: (row, what is launched).
    """
    result: list[Piece] = []
    rows: list[int] = []
    bound: list[Any] = []
    for row, launch in launches:
        ours = isinstance(launch, BoundGrid)
        if rows and not ours:
            result.append(Piece(stream, rows, bound, True))
            rows, bound = [], []
        if ours:
            rows.append(row)
            bound.append(launch)
            continue
        result.append(Piece(stream, [row], [launch], False))
    if rows:
        result.append(Piece(stream, rows, bound, True))
    return result


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
        plan = binding.plan
        self._pending_records = pending_records
        self._meter = pending_records.meter
        self._details = Details(device, recorder)
        values = self._recorded_values()
        types = [[plan.values[v].type for v in of_stream] for of_stream in values]
        words = [sum(map(self._details.nbytes, of_stream)) for of_stream in types]
        self._stats = _StatsMemory(device, list(map(len, types)), words)
        self._gathering = [self._gathering_of(s, of_stream) for s, of_stream in enumerate(values)]
        self._launches: list[Launch] = []
        self._indices: dict[int, int] = {}  # of launches, by id of what makes them
        self._stretches: list[Stretch] = []
        self._layouts: dict[tuple[bool, ...], tuple[Layout, list[int]]] = {}
        self._places: list[int] = []  # of launches in the layout of this activation
        self._pending: PendingActivation | None = None
        self.capturing: Capture | None = None

    # --- while the plan is bound ---

    def _recorded_values(self) -> list[list[int]]:
        """By stream, the values whose statistics are taken."""
        by_stream: list[list[int]] = [[] for _ in self.layout.rows]
        for instruction in self.binding.plan.instructions:
            if isinstance(instruction, Run):
                by_stream[instruction.stream] += self.recorded.get(instruction.step, ())
        return by_stream

    def _gathering_of(self, stream: int, values: Sequence[int]) -> Gathering:
        plan, stats = self.binding.plan, self._stats
        types = [plan.values[v].type for v in values]
        places = (stats.enabled.address, stats.address(stream, 0))
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
            work += self._meter.around(len(rows), bound)
            rows.append(number)
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
            target = self._stats.address(stream, len(recorded))
            addresses = [source, self._stats.enabled.address, target]
            statistics = self.device.bind(
                launches, addresses, self._stats.workspace(stream, nbytes)
            )
            work += [(NO_ROW, b) for b in statistics]
            recorded.append((number, value))
        if not bound:  # nothing else may have this launched
            work += [(NO_ROW, b) for b in gathering.flush()]
        return work

    def _detailed(self, t: TensorType, source: int, stream: int) -> list[Any]:
        stats = self._stats
        workspace = stats.workspace(stream, self._details.workspace(t))
        target = stats.further[stream]
        stats.further[stream] += self._details.nbytes(t)
        return self._details.bound(t, [source, stats.enabled.address, target], workspace)

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
        work = Bundle(pieces(stream, launches), pieces(stream, bare))
        issue = partial(self._issue, work, index, self._streams[stream])
        self._indices[id(issue)] = index
        return issue

    def move(self, stream: int, work: Any) -> Callable[[], None]:
        piece = Piece(stream, [MOVED], [work], False)
        return partial(self._hand_over, piece, self._streams[stream].handle)

    def bound(self) -> None:
        self.layout.launches += self._launches

    @property
    def captures(self) -> bool:
        """Whether stretches may be replayed as graphs."""
        return self._meter.captures

    def stretch(self, code: Sequence[Any]) -> Stretch:
        """What is to be notified of how a stretch is launched."""
        indices = [self._indices[id(c)] for c in code if id(c) in self._indices]
        self._stretches.append(Stretch(self, indices))
        return self._stretches[-1]

    # --- while it runs ---

    @property
    def _now(self) -> PendingActivation:
        assert self._pending is not None  # an activation began
        return self._pending

    def begin(self, recorder: Recorder, step: int, with_stats: bool) -> None:
        self.with_stats = with_stats
        layout, self._places = self._layout_now()
        self._pending = PendingActivation(self._activate(recorder, step, layout))
        self._sync_times, self._call_times = self._pending.syncs, self._pending.calls
        self._pending_records.begin(recorder)

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

    def finish(self) -> None:
        pending = self._now
        pending.with_stats = self.with_stats
        if pending.with_stats:
            for stream, (address, nbytes) in enumerate(self._stats.parts):
                if nbytes:
                    slot = self._pending_records.slots.get(nbytes)
                    copy = self.device.gpu.driver.cuMemcpyDtoHAsync
                    handle = self._streams[stream].handle
                    copy(slot.ctypes.data, address, nbytes, handle)
                    pending.stats[stream] = slot
                    count = len(self.layout.stats[stream])
                    pending.detail_words[stream] = nbytes // 8 - count * WORDS
        self._pending_records.add(self.recorder, pending)
        self._pending = None

    def _issue(self, work: Bundle, index: int, stream: CudaStream) -> None:
        began = monotonic_ns()
        for piece in work.pieces if self.with_stats else work.bare:
            self._hand_over(piece, stream.handle)
        if self.capturing is None:
            self._now.launches[self._places[index]] = began, monotonic_ns()

    def _hand_over(self, piece: Piece, stream: int) -> None:
        if self.capturing is None:
            self._meter.issue(self._now, piece, stream)
        else:
            self.capturing.issue(piece, stream)

    def replay(self, stretch: Stretch, launch: Callable[[], None]) -> None:
        began = monotonic_ns()
        self._meter.replay(self._now, stretch.nodes[stretch.variant], launch)
        if stretch.launches:
            self._now.launches[self._places[stretch.launches[0]]] = began, monotonic_ns()


class Bundle:
    """The pieces of a launch. `bare`: those of a step without statistics."""

    __slots__ = ("bare", "bound", "pieces")

    def __init__(self, pieces: list[Piece], bare: list[Piece]):
        self.pieces = pieces
        self.bare = bare
        self.bound = [row for piece in pieces for row in piece.part.rows]  # as many as kernels


class _StatsMemory:
    """Where a tape's statistics are written on the GPU: those of each stream in a row, and behind
    them so many bytes of what is taken beyond them.
    """

    def __init__(self, device: CudaDevice, counts: Sequence[int], detail_bytes: Sequence[int]):
        self._device = device
        what = "statistics"
        self.enabled = device.alloc(ENABLED.nbytes, what)
        device.write(self.enabled, 0, ENABLED, 1)  # where they are not, nothing is launched
        sizes = [n * _NBYTES + more for n, more in zip(counts, detail_bytes, strict=True)]
        self._memory = device.alloc(sum(sizes), what)
        starts = [self._memory.address + int(n) for n in np.cumsum([0, *sizes])[:-1]]
        self.parts: list[tuple[int, int]] = list(zip(starts, sizes, strict=True))
        self.further = [at + n * _NBYTES for at, n in zip(starts, counts, strict=True)]  # next
        self._workspaces: list[list[Any]] = [[] for _ in counts]

    def address(self, stream: int, index: int) -> int:
        return self.parts[stream][0] + index * _NBYTES

    def workspace(self, stream: int, nbytes: int) -> int:
        """Memory that the statistics of a stream share; a larger one for those that need more."""
        workspaces = self._workspaces[stream]
        if nbytes and (not workspaces or workspaces[-1].nbytes < nbytes):
            workspaces.append(self._device.alloc(nbytes, "statistics"))
        return workspaces[-1].address if workspaces else 0


# --- captured stretches ---------------------------------------------------------------------------


class Stretch:
    """A stretch of a recorded plan, which `graphs.Replay` notifies of what becomes of it."""

    def __init__(self, tape: CudaTape, launches: list[int]):
        self.tape = tape
        self.launches = launches
        self.nodes: dict[bool, Nodes] = {}  # by variant
        self._issued: set[bool] = set()  # once, as they are: they are graphs from then on

    @property
    def variant(self) -> bool:
        """Whether statistics are taken now."""
        return self.tape.with_stats

    @property
    def replayed(self) -> bool:
        return self.variant in self._issued

    def issued(self) -> None:
        self._issued.add(self.variant)

    def begin_capture(self, stream: int) -> None:
        self.tape.capturing = Capture(self.tape.device.gpu.driver, stream)

    def end_capture(self) -> None:
        """The stretch was issued, and its graph is still being made."""
        capture, self.tape.capturing = self.tape.capturing, None
        if capture is not None:
            self.nodes[self.variant] = capture.nodes()

    def replay(self, launch: Callable[[], None]) -> None:
        self.tape.replay(self, launch)


class Capture:
    """Finds out which nodes each piece adds to a graph that is being made."""

    def __init__(self, driver: Any, stream: int):
        self._driver = driver
        self._stream = stream  # on which the graph begins
        kinds = driver.CUgraphNodeType
        self._kinds = {
            int(kinds.CU_GRAPH_NODE_TYPE_KERNEL),
            int(kinds.CU_GRAPH_NODE_TYPE_MEMCPY),
            int(kinds.CU_GRAPH_NODE_TYPE_MEMSET),
        }
        self._places: dict[int, tuple[int, int]] = {}  # by index of a node

    def _graph(self) -> Any:
        return self._driver.cuStreamGetCaptureInfo(self._stream)[2]

    def _count(self) -> int:
        return self._driver.cuGraphGetNodes(self._graph(), 0)[1]

    def issue(self, piece: Piece, stream: int) -> None:
        before = self._count()
        piece.work(stream)
        added = range(before, self._count())
        part = piece.part
        rows = part.rows if part.exact else part.rows * len(added)
        for index, row in zip(added, rows, strict=True):
            self._places[index] = (part.stream, row)

    def nodes(self) -> Nodes:
        """Those that CUPTI reports, in the order in which they were made."""
        graph, count = self._graph(), self._count()
        handles = self._driver.cuGraphGetNodes(graph, count)[0]
        kinds = [int(self._driver.cuGraphNodeGetType(node)) for node in handles]
        reported = [k for k, kind in enumerate(kinds) if kind in self._kinds]
        return Nodes([self._places.get(k, (0, NO_ROW)) for k in reported])
