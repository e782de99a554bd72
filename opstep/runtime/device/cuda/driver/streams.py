"""Streams and events of a GPU. Work for a stream is a callable that takes its handle."""

from __future__ import annotations

import queue
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from opstep.runtime.device.cuda.driver.driver import Gpu
from opstep.runtime.device.protocols import Event, Stream
from opstep.runtime.device.ranks import awaited, owed
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.wording import Argument, Wording


class _Capturing(threading.local):
    """What stands for the stretch that this thread is capturing, None where there is none; and the
    streams over which it may spread, if it may.
    """

    stretch: Any = None
    sides: Sides | None = None


capturing = _Capturing()


class CudaEvent(Event):
    """A point in a stream, without a time. `within`: the stretch that it was captured in. The
    driver's event serves another one later: a call on a stream of others takes two.
    """

    __slots__ = ("_callbacks", "_gpu", "_recorded", "handle", "within")

    def __init__(self, gpu: Gpu):
        self.within: Any = None
        self._gpu = gpu
        self._callbacks: list[Callable[[], Any]] = []
        self._recorded = False
        try:
            self.handle = gpu.spare_events.pop()
        except IndexError:
            driver = gpu.enter()
            flags = driver.CUevent_flags
            self.handle = driver.cuEventCreate(
                flags.CU_EVENT_DISABLE_TIMING | flags.CU_EVENT_BLOCKING_SYNC
            )

    def __del__(self):
        handle = getattr(self, "handle", None)
        if handle is not None and self.within is None:
            self._gpu.spare_events.append(handle)
        elif handle is not None and not sys.is_finalizing():  # of a capture: it cannot be asked
            _destroy(self._gpu, "cuEventDestroy", handle)

    def reset(self) -> None:
        """A GPU's event is recorded anew without being reset."""

    set = reset  # and nobody waits for one that is never recorded

    def done(self) -> bool:
        module = self._gpu.enter().module
        (code,) = module.cuEventQuery(self.handle)
        return int(code) != 600  # not ready

    def wait(self) -> None:
        self._gpu.enter().cuEventSynchronize(self.handle)

    def on_done(self, callback: Callable[[], Any]) -> None:
        """Calls back once the event is reached, from a thread of the device."""
        if self._recorded:
            _watch(self._gpu, self, [callback])
        else:
            self._callbacks.append(callback)

    def recorded(self) -> None:
        self._recorded = True
        if self._callbacks:
            callbacks, self._callbacks = self._callbacks, []
            _watch(self._gpu, self, callbacks)


class CudaStream(Stream):
    """A stream that never waits for the legacy default stream."""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        driver = gpu.enter()
        made = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.handle = int(made)
        weakref.finalize(self, _destroy, gpu, "cuStreamDestroy", made)

    def submit(self, work: Callable[[int], Any]) -> None:
        work(self.handle)

    def record(self, event: CudaEvent) -> None:
        self.gpu.driver.cuEventRecord(event.handle, self.handle)
        event.within = capturing.stretch
        event.recorded()

    def wait(self, event: CudaEvent) -> None:
        """What is submitted from here on comes after the event. An event of another stretch is
        passed already: what is captured begins after all that came before it, and all that comes
        behind it waits for its end.
        """
        if event.within is not capturing.stretch:
            return
        self.gpu.driver.cuStreamWaitEvent(self.handle, event.handle, 0)

    def start(self) -> None:
        """Submitted work has begun already."""

    def done(self) -> bool:
        """Whether nothing is left to do. Raises what went wrong on the GPU."""
        driver = self.gpu.enter()
        (code,) = driver.module.cuStreamQuery(self.handle)
        if int(code) not in (0, 600):
            raise driver.error("cuStreamQuery", int(code))
        return int(code) == 0

    def synchronize(self) -> None:
        driver = self.gpu.enter()
        if not owed():
            driver.cuStreamSynchronize(self.handle)
            return
        with awaited(self.handle):
            driver.cuStreamSynchronize(self.handle)
            if driver.lost:  # it did not end by itself
                raise driver.lost

    def synchronize_within(self, seconds: float, progress: Callable[[], int] = int) -> None:
        """`synchronize` that gives up where for so long nothing ends and `progress` stays the same.
        Raises `LostDevice` then: no kernel can be stopped but with its process. Other ranks have
        their own time.
        """
        if owed():
            self.synchronize()
            return
        deadline, reached = monotonic() + seconds, 0
        while not self.done():
            if monotonic() > deadline:
                if reached != (reached := progress()):
                    deadline = monotonic() + seconds
                    continue
                raise self.gpu.driver.lose(
                    f"it has been running for {seconds:g} s",
                    hint=Wording.any_of(
                        (Argument("patience"), " says how long an op may take in debug mode")
                    ),
                )

    def drop(self) -> None:
        """Work that is queued cannot be taken back."""

    def abandon(self) -> None:
        """Waits for what is queued, whatever comes of it."""
        with suppress(DeviceError):
            self.synchronize()


class Sides:
    """Streams beside others, in a capture: for launches that touch nothing of each other's, and for
    those that nobody waits for.
    """

    def __init__(self, gpu: Gpu, count: int):
        self.streams = [CudaStream(gpu) for _ in range(count)]
        self._driver = gpu.driver
        self._fork = CudaEvent(gpu)
        self._ends = [CudaEvent(gpu) for _ in range(count)]
        self._beside: dict[int, int] = {}  # stream -> which of ours has what nobody waits for
        self._ahead: set[int] = set()  # streams that have not waited since something was put there

    def fork(self, stream: int) -> None:
        """Later work on them comes after the work on that stream."""
        self._driver.cuEventRecord(self._fork.handle, stream)
        for side in self.streams:
            self._driver.cuStreamWaitEvent(side.handle, self._fork.handle, 0)

    def join(self, stream: int) -> None:
        """Later work on that stream comes after the work on them."""
        for k in range(len(self.streams)):
            self._join(stream, k)

    def behind(self, stream: int) -> int:
        """A stream on which comes what is behind all that is on that one so far, and behind what
        was given to it before. No two streams share one.
        """
        k = self._beside.setdefault(stream, len(self._beside))
        self._ahead.add(stream)
        self._driver.cuEventRecord(self._fork.handle, stream)
        self._driver.cuStreamWaitEvent(self.streams[k].handle, self._fork.handle, 0)
        return self.streams[k].handle

    def catch_up(self, stream: int) -> None:
        """Later work on that stream comes after all work that was not waited for yet."""
        if stream in self._ahead:
            self._ahead.remove(stream)
            self._join(stream, self._beside[stream])

    def begin(self) -> None:
        """A capture begins; the one before may have been cut off."""
        self._beside.clear()
        self._ahead.clear()

    def end(self, stream: int) -> None:
        """The capture ends on that stream, with all that nobody waited for."""
        for k in self._beside.values():
            self._join(stream, k)

    def _join(self, stream: int, k: int) -> None:
        self._driver.cuEventRecord(self._ends[k].handle, self.streams[k].handle)
        self._driver.cuStreamWaitEvent(stream, self._ends[k].handle, 0)


class ForeignStream(CudaStream):
    """A stream that another library made, and destroys. 0 is the legacy default stream."""

    def __init__(self, gpu: Gpu, handle: int):
        self.gpu = gpu
        self.handle = handle


def _destroy(gpu: Gpu, function: str, handle: Any) -> None:
    """Gives something back; there is nobody to tell where that fails."""
    with suppress(DeviceError):
        getattr(gpu.enter(), function)(handle)


# --- callbacks ------------------------------------------------------------------------------------


class _Watcher:
    """A thread that waits for events of one GPU, in the order asked, and calls back."""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        self.requests: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._watch, daemon=True, name="opstep events").start()

    def _watch(self) -> None:
        while True:
            event, callbacks = self.requests.get()
            with suppress(DeviceError):  # whoever waits for the stream is told
                event.wait()
            for callback in callbacks:
                callback()


_watchers: dict[int, _Watcher] = {}
_lock = threading.Lock()


def _watch(gpu: Gpu, event: CudaEvent, callbacks: list[Callable[[], Any]]) -> None:
    with _lock:
        if gpu.ordinal not in _watchers:
            _watchers[gpu.ordinal] = _Watcher(gpu)
    _watchers[gpu.ordinal].requests.put((event, callbacks))
