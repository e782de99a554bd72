"""Stretches of work captured into CUDA graphs and replayed: one launch for all their kernels.

A stretch is what stands between two calls of graphs that the host runs. It is issued as it is the
first time, captured the second, and replayed from then on. A graph begins on the first stream; the
others join it there, as they are joined again at its end.

A graph has the addresses that it was captured with. Where they change, the stretch begins anew;
its graph is kept, for an allocator often gives the same addresses again a step or two later. To
capture takes as long as to issue a stretch many times: each time that a graph is given up for
others, the next ones have to be worth more.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, Protocol

from opstep.runtime.device.cuda.driver.driver import Gpu
from opstep.runtime.device.cuda.driver.streams import CudaEvent, CudaStream, Sides, capturing
from opstep.runtime.device.ranks import noted, stand
from opstep.runtime.ir.collector import collector_paused
from opstep.runtime.ir.errors import DeviceError

_lock = threading.Lock()  # one capture at a time
_SIDES = 8  # kernels that run beside each other, at most
_KEPT = 8  # graphs of a stretch
_NOTED = 8 * _KEPT  # addresses at which runs are counted
_LONGEST = 256  # runs at the same addresses before a stretch is captured


class Watch(Protocol):
    """Told of a stretch that is recorded. `variant`: which of its works is done now; each has a
    graph of its own. `at_once`: it is not issued first.
    """

    at_once: bool

    @property
    def variant(self) -> Hashable: ...

    def issued(self) -> None:
        """It was, as it is; from now on it is replayed."""
        ...

    def moved(self) -> None:
        """It is issued as it is again."""
        ...

    def replay(self, launch: Callable[[], Any]) -> None:
        """Has to launch the graph."""
        ...


class Replay:
    """A stretch. `alone`: nothing else of the run is before or behind it on the streams. `watch`
    is told what becomes of it; `spread`: there are launches to run beside each other.
    """

    def __init__(
        self, gpu: Gpu, code: Sequence[Callable[[], Any]], streams: Sequence[CudaStream],
        alone: bool, watch: Watch | None = None, spread: bool = False,
    ):  # fmt: skip
        self.gpu = gpu
        self.code = code
        self.streams = streams
        self.alone = alone
        self.watch = watch
        count = max(_SIDES, len(streams))
        self.sides = _sides(gpu, count) if spread or watch else None
        self._places = 0  # stands for the addresses now
        # by variant and places, the latest that was used last
        self._graphs: OrderedDict[Hashable, Any] = OrderedDict()
        self._issued: OrderedDict[Hashable, int] = OrderedDict()
        self._stood: list[Any] = []  # what of it other ranks have a part in
        self._wait = 0 if watch and watch.at_once else 1  # runs that are issued before a capture
        self._events = [CudaEvent(gpu) for _ in range(2 * len(streams))]

    def __call__(self) -> None:
        key = (self.watch.variant if self.watch else None, self._places)
        if key in self._graphs:
            self._graphs.move_to_end(key)
        elif self._is_issued(key):
            self._issue()
            if self.watch and self._issued[key] == self._wait:
                self.watch.issued()
            return
        else:
            self._graphs[key] = self._captured()
            if len(self._graphs) > _KEPT:
                self._give_up(next(iter(self._graphs)))
        first, others = self.streams[0], self.streams[1:]
        if not self.alone:
            self._join(others, [first])
        for plan, step in self._stood:
            stand(plan, step, first.handle)
        launch = partial(self.gpu.driver.cuGraphLaunch, self._graphs[key][0], first.handle)
        if self.watch:
            self.watch.replay(launch)
        else:
            launch()
        if not self.alone:
            self._join([first], others)

    @property
    def ready(self) -> bool:
        """Whether `launch` is the whole of a run at these addresses, on whatever stream."""
        captured = (None, self._places) in self._graphs
        return captured and self.alone and not self.watch and not self._stood

    def launch(self, stream: CudaStream) -> None:
        """The answer of `ready`."""
        key = (None, self._places)
        self._graphs.move_to_end(key)
        self.gpu.driver.cuGraphLaunch(self._graphs[key][0], stream.handle)

    def moved(self, places: int) -> None:
        """Addresses have changed, to those that `places` stands for."""
        self._places = places
        if self.watch is not None:  # it knows of one graph a variant
            for key in list(self._graphs):
                self._give_up(key)
            self._issued.clear()
            if self._wait:
                self.watch.moved()

    def _is_issued(self, key: Hashable) -> bool:
        """Whether a stretch without a graph is not worth one yet; counts its runs."""
        issued = self._issued.pop(key, 0)
        if issued >= self._wait:
            return False
        self._issued[key] = issued + 1
        if len(self._issued) > _NOTED:
            self._issued.popitem(last=False)
        return True

    def _give_up(self, key: Hashable) -> None:
        _, drop = self._graphs.pop(key)
        drop()
        self._wait = min(max(2 * self._wait, 1), _LONGEST)

    def _issue(self) -> None:
        for do in self.code:
            do()

    def _join(self, before: Sequence[CudaStream], after: Sequence[CudaStream]) -> None:
        """Has later work on `after` wait for the work on `before`."""
        half = len(self.streams)
        for k, stream in enumerate(before):
            event = self._events[k if len(before) > 1 else half + k]
            stream.record(event)
            for other in after:
                other.wait(event)

    def _captured(self) -> tuple[Any, Callable[[], Any]]:
        """The stretch as an executable graph, and what gives that back."""

        def issue(_: int) -> None:
            self._join([first], self.streams[1:])
            with noted() as self._stood:
                self._issue()
            self._join(self.streams[1:], [first])
            if self.sides:
                self.sides.end(first.handle)

        first = self.streams[0]
        with captured_graph(self.gpu, issue, first, self.sides) as graph:
            made = self.gpu.driver.cuGraphInstantiate(graph, 0)
        return made, weakref.finalize(self, _destroy, self.gpu, made)


@contextmanager
def captured_graph(
    gpu: Gpu, work: Callable[[int], Any], stream: CudaStream, sides: Sides | None = None
) -> Iterator[Any]:
    """Work, which is captured from that stream, as a graph. What it needs has to be loaded."""
    driver = gpu.enter()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    # a capture is spoilt by what this thread frees meanwhile: the collector waits
    with _lock, collector_paused():
        driver.cuStreamBeginCapture(stream.handle, mode)
        capturing.stretch, capturing.sides = object(), sides
        if sides:
            sides.begin()
        try:
            work(stream.handle)
        except BaseException:
            driver.module.cuStreamEndCapture(stream.handle)  # whatever it says
            raise
        finally:
            capturing.stretch = capturing.sides = None
        graph = driver.cuStreamEndCapture(stream.handle)
    try:
        yield graph
    finally:
        driver.cuGraphDestroy(graph)


@contextmanager
def captured(
    gpu: Gpu, work: Callable[[int], Any], stream: CudaStream
) -> Iterator[Callable[[int], Any]]:
    """Work as one that launches a graph, which is given back when the stream is idle."""
    driver = gpu.driver
    with captured_graph(gpu, work, stream) as graph:
        made = driver.cuGraphInstantiate(graph, 0)
    try:
        yield lambda handle: driver.cuGraphLaunch(made, handle)
    finally:
        stream.synchronize()
        driver.cuGraphExecDestroy(made)


@cache
def _sides(gpu: Gpu, count: int) -> Sides:
    """State that captures share, of which there is one at a time."""
    return Sides(gpu, count)


def _destroy(gpu: Gpu, graph: Any) -> None:
    with suppress(DeviceError):
        gpu.enter().cuGraphExecDestroy(graph)
