"""Records a bound plan on a GPU: times as CUPTI or events tell them, statistics by kernels behind
their ops.

While a plan runs nothing is asked of the GPU. What was launched is noted (`Take`); when all streams
of the run are idle (`Takes.collect`), the reports are fetched and become records. A stretch that is
replayed as a graph is recorded as that: one launch, whose kernels are known by their nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from opstep.runtime.device.cuda.driver.launching import BoundGrid, work_of
from opstep.runtime.device.cuda.recording.gathering import Gathering, gathers
from opstep.runtime.device.cuda.recording.records import MOVED, NO_ROW, Nodes, Part, merged
from opstep.runtime.device.cuda.recording.takes import Take
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
    from opstep.runtime.device.cuda.recording.takes import Takes


_NBYTES = 8 * WORDS  # of a tensor's statistics


class Piece:
    """Work for a stream whose kernels are told apart."""

    __slots__ = ("part", "work")

    def __init__(self, stream: int, rows: Sequence[int], bound: Sequence[Any], exact: bool):
        self.part = Part(stream, tuple(rows), exact)
        self.work = work_of(bound)


def pieces(stream: int, launches: Sequence[tuple[int, Any]]) -> list[Piece]:
    """Kernels of ours in a row are one piece; of what a library runs, it is not known how many
    kernels that has. `launches`: (row, what is launched).
    """
    made: list[Piece] = []
    rows: list[int] = []
    bound: list[Any] = []
    for row, launch in launches:
        ours = isinstance(launch, BoundGrid)
        if rows and not ours:
            made.append(Piece(stream, rows, bound, True))
            rows, bound = [], []
        if ours:
            rows.append(row)
            bound.append(launch)
            continue
        made.append(Piece(stream, [row], [launch], False))
    if rows:
        made.append(Piece(stream, rows, bound, True))
    return made


class CudaTape(Tape):
    """Of a GPU's binding."""

    def __init__(self, device: CudaDevice, binding: Binding, recorder: Recorder, takes: Takes):
        super().__init__(binding, recorder)
        self.device = device
        self._streams = cast("Sequence[CudaStream]", binding.streams)  # as the device made them
        plan = binding.plan
        self._takes = takes
        self._meter = takes.meter
        self._details = Details(device, recorder)
        types = [[plan.values[v].type for v in taken] for taken in self._taken()]
        words = [sum(map(self._details.nbytes, of_stream)) for of_stream in types]
        self._stats = _StatsMemory(device, list(map(len, types)), words)
        self._gathering = [self._gathering_of(s, taken) for s, taken in enumerate(self._taken())]
        self._launches: list[Launch] = []
        self._indices: dict[int, int] = {}  # of launches, by id of what makes them
        self._stretches: list[Stretch] = []
        self._layouts: dict[tuple[bool, ...], tuple[Layout, list[int]]] = {}
        self._places: list[int] = []  # of launches in the layout of this activation
        self._take: Take | None = None
        self.capturing: Capture | None = None

    # --- while the plan is bound ---

    def _taken(self) -> list[list[int]]:
        """By stream, the values whose statistics are taken."""
        found: list[list[int]] = [[] for _ in self.layout.rows]
        for instruction in self.binding.plan.instructions:
            if isinstance(instruction, Run):
                found[instruction.stream] += self.recorded.get(instruction.step, ())
        return found

    def _gathering_of(self, stream: int, taken: Sequence[int]) -> Gathering:
        plan, stats = self.binding.plan, self._stats
        types = [plan.values[v].type for v in taken]
        places = (stats.enabled.address, stats.place(stream, 0))
        return Gathering(self.device, types, *places, plan.policy.fill == "nan")

    def around(self, number: int, step: Step, stream: int, bound: Any) -> list[tuple[int, Any]]:
        """The step's launches and those of its statistics, each with its row."""
        rows = self.layout.rows[stream]
        gathering = self._gathering[stream]
        made: list[tuple[int, Any]] = []
        if bound:
            made += [(NO_ROW, b) for b in gathering.before(self._written(step))]
            made += self._meter.around(len(rows), bound)
            rows.append(number)
        for value in self.recorded.get(number, ()):
            plan = self.binding.plan
            taken, t = self.layout.stats[stream], plan.values[value].type
            source = self.binding.address_of(value).address
            made += [(NO_ROW, b) for b in self._detailed(t, source, stream)]
            if gathers(t):
                made += [(NO_ROW, b) for b in gathering.add(source, t, len(taken))]
                taken.append((number, value))
                continue
            launches, nbytes = self.device.prepare(*step_for(t, plan.policy.fill == "nan"))
            addresses = [source, self._stats.enabled.address, self._stats.place(stream, len(taken))]
            statistics = self.device.bind(
                launches, addresses, self._stats.workspace(stream, nbytes)
            )
            made += [(NO_ROW, b) for b in statistics]
            taken.append((number, value))
        if not bound:  # nothing else may have this launched
            made += [(NO_ROW, b) for b in gathering.take()]
        return made

    def _detailed(self, t: TensorType, source: int, stream: int) -> list[Any]:
        stats = self._stats
        workspace = stats.workspace(stream, self._details.workspace(t))
        target = stats.further[stream]
        stats.further[stream] += self._details.nbytes(t)
        return self._details.bound(t, [source, stats.enabled.address, target], workspace)

    def _written(self, step: Step) -> list[tuple[int, int]]:
        """The addresses that a step writes: from, to."""
        places, buffers = self.binding.places, self.binding.plan.buffers
        return [(places[b].address, places[b].address + buffers[b].nbytes) for b in step.writes]

    def launch(self, stream: int, launches: list[tuple[int, Any]]) -> Callable[[], None]:
        gathering = self._gathering[stream]
        launches = [*launches, *((NO_ROW, b) for b in (*gathering.take(), *gathering.merge()))]
        self._launches.append(self._rows_launched(stream))
        index = len(self._launches) - 1
        work = Bundle(pieces(stream, launches))
        made = partial(self._issue, work, index, self._streams[stream])
        self._indices[id(made)] = index
        return made

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
        """To be told how a stretch is launched."""
        indices = [self._indices[id(c)] for c in code if id(c) in self._indices]
        self._stretches.append(Stretch(self, indices))
        return self._stretches[-1]

    # --- while it runs ---

    @property
    def _now(self) -> Take:
        assert self._take is not None  # an activation began
        return self._take

    def begin(self, recorder: Recorder, step: int, with_stats: bool) -> None:
        layout, self._places = self._layout_now()
        self._take = Take(self._activate(recorder, step, layout))
        self._sync_times, self._call_times = self._take.syncs, self._take.calls
        self._takes.begin(recorder)
        if with_stats != self._with_stats:  # no stream is busy, or the value stays as it is
            self._with_stats = with_stats
            self.device.write(self._stats.enabled, 0, ENABLED, int(with_stats))

    def _layout_now(self) -> tuple[Layout, list[int]]:
        """What is recorded of a run in which some stretches are replayed; where launches are."""
        replayed = tuple(stretch.issued for stretch in self._stretches)
        if replayed not in self._layouts:
            groups = [s.launches for s in self._stretches if s.issued]
            launches, places = merged(self._launches, groups)
            a = self.layout
            layout = Layout(a.plan, a.rows, a.stats, launches, a.waits, a.syncs, a.calls, a.kernels)
            self._layouts[replayed] = layout, places
        return self._layouts[replayed]

    def finish(self) -> None:
        take = self._now
        take.with_stats = self._with_stats
        if take.with_stats:
            for stream, (address, nbytes) in enumerate(self._stats.parts):
                if nbytes:
                    slot = self._takes.slots.get(nbytes)
                    copy = self.device.gpu.driver.cuMemcpyDtoHAsync
                    handle = self._streams[stream].handle
                    copy(slot.ctypes.data, address, nbytes, handle)
                    take.stats[stream] = slot
                    count = len(self.layout.stats[stream])
                    take.beyond[stream] = nbytes // 8 - count * WORDS
        self._takes.add(self.recorder, take)
        self._take = None

    def _issue(self, work: Bundle, index: int, stream: CudaStream) -> None:
        began = monotonic_ns()
        for piece in work.pieces:
            self._hand_over(piece, stream.handle)
        if self.capturing is None:
            self._now.launches[self._places[index]] = began, monotonic_ns()

    def _hand_over(self, piece: Piece, stream: int) -> None:
        if self.capturing is None:
            self._meter.issue(self._now, piece, stream)
        else:
            self.capturing.issue(piece, stream)

    def replay(self, stretch: Stretch, launch: Callable[[], None]) -> None:
        assert stretch.nodes is not None
        began = monotonic_ns()
        self._meter.replay(self._now, stretch.nodes, launch)
        if stretch.launches:
            self._now.launches[self._places[stretch.launches[0]]] = began, monotonic_ns()


class Bundle:
    """The pieces of a launch."""

    __slots__ = ("bound", "pieces")

    def __init__(self, made: list[Piece]):
        self.pieces = made
        self.bound = [row for piece in made for row in piece.part.rows]  # as many as kernels


class _StatsMemory:
    """Where a tape's statistics are written on the GPU: those of each stream in a row, and behind
    them so many bytes of what is taken beyond them.
    """

    def __init__(self, device: CudaDevice, counts: Sequence[int], beyond: Sequence[int]):
        self._device = device
        what = "statistics"
        self.enabled = device.alloc(ENABLED.nbytes, what)
        device.write(self.enabled, 0, ENABLED, 0)
        sizes = [n * _NBYTES + more for n, more in zip(counts, beyond, strict=True)]
        self._memory = device.alloc(sum(sizes), what)
        starts = [self._memory.address + int(n) for n in np.cumsum([0, *sizes])[:-1]]
        self.parts: list[tuple[int, int]] = list(zip(starts, sizes, strict=True))
        self.further = [at + n * _NBYTES for at, n in zip(starts, counts, strict=True)]  # next
        self._workspaces: list[list[Any]] = [[] for _ in counts]

    def place(self, stream: int, index: int) -> int:
        return self.parts[stream][0] + index * _NBYTES

    def workspace(self, stream: int, nbytes: int) -> int:
        """Memory that the statistics of a stream share; a larger one for those that need more."""
        kept = self._workspaces[stream]
        if nbytes and (not kept or kept[-1].nbytes < nbytes):
            kept.append(self._device.alloc(nbytes, "statistics"))
        return kept[-1].address if kept else 0


# --- captured stretches ---------------------------------------------------------------------------


class Stretch:
    """A stretch of a recorded plan, told by `graphs.Replay` what becomes of it."""

    def __init__(self, tape: CudaTape, launches: list[int]):
        self.tape = tape
        self.launches = launches
        self.issued = False  # once, as it is: it is a graph from then on
        self.nodes: Nodes | None = None

    def begin_capture(self, stream: int) -> None:
        self.tape.capturing = Capture(self.tape.device.gpu.driver, stream)

    def end_capture(self) -> None:
        """The stretch was issued, and its graph is still being made."""
        capture, self.tape.capturing = self.tape.capturing, None
        if capture is not None:
            self.nodes = capture.nodes()

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
        told = [k for k, kind in enumerate(kinds) if kind in self._kinds]
        return Nodes([self._places.get(k, (0, NO_ROW)) for k in told])
