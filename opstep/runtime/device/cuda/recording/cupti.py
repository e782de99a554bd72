"""When kernels ran, as CUPTI tells it: activity records of NVIDIA's profiling library.

Whoever launches something that is recorded pushes a number of its own, a token, around the call:
CUPTI tells which of the driver's calls were made meanwhile, and which kernels came of each.
Records are handed over in buffers, at the latest when they are asked for (`Collector.gather`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count, repeat
from time import monotonic_ns, sleep
from typing import Any

from opstep.runtime.device.cuda.driver.driver import Gpu
from opstep.runtime.device.cuda.recording.records import Matcher, Ran
from opstep.runtime.recording import COPY, FILL, Kernel

BUFFER = 1 << 14  # bytes; a kernel's record has about 200. A full one comes by itself
READINGS = 7  # of both clocks, of which the closest two are believed
CLOCKS_HOLD = 1_000_000_000  # ns after which they are compared again
PATIENCE = 9  # times that records are asked for, each time after twice as long
SHORT = 100e-6  # seconds
_LAUNCHING = re.compile(r"cu(da)?(LaunchKernel|GraphLaunch|Memcpy|Memset)")
UNCLAIMED = 4096  # calls of others that are remembered, at least


class Collector:
    """Collects records while anybody wants them. One for the process; for any thread.

    Raises ImportError where the package is missing, RuntimeError where CUPTI cannot be used.
    """

    def __init__(self) -> None:
        from cupti import cupti

        self._cupti: Any = cupti
        kind = cupti.ActivityKind
        self._kinds = (kind.EXTERNAL_CORRELATION, kind.CONCURRENT_KERNEL, kind.MEMCPY, kind.MEMSET)
        self._ours = cupti.ExternalCorrelationKind.CUSTOM0
        self._all_calls = False
        self._idle_calls = [
            (enable, int(call))
            for enable, calls in (
                (cupti.activity_enable_driver_api, cupti.driver_api_trace_cbid),
                (cupti.activity_enable_runtime_api, cupti.runtime_api_trace_cbid),
            )
            for call in calls
            if not _LAUNCHING.match(call.name)
        ]
        self._tokens = count(1)
        self._matcher = Matcher()
        self._described_nodes: set[int] = set()  # nodes of graphs whose kernels were described
        self._users: set[int] = set()
        self._lock = threading.Lock()  # of all that is above; not held while CUPTI is called
        self._calling = threading.Lock()
        self._offset = 0  # of CUPTI's clock
        self._compared = 0  # when
        self._lacking = False  # the last records asked for did not come
        self._crowded = UNCLAIMED  # doubles with what cannot be forgotten yet
        # CUPTI asks in the midst of a launch, where a signal's handler must not raise: none of
        # Python's code runs there.
        asked_for_buffer = repeat((BUFFER, 0)).__next__
        cupti.activity_register_callbacks(asked_for_buffer, self._completed)

    # --- who wants records ---

    def acquire(self, user: int) -> None:
        """Records are wanted from now on."""
        if user in self._users:
            return
        with self._calling:
            if not self._users:
                self._turn(on=True)
            self._users.add(user)

    def release(self, user: int) -> None:
        with self._calling:
            if user in self._users:
                self._users.remove(user)
                if not self._users:
                    with suppress(self._cupti.cuptiError):  # the GPU may be lost
                        self._cupti.activity_flush_all(0)
                        self._turn(on=False)

    def _turn(self, on: bool) -> None:
        """Records are made from now on, or no more. Which call launched what is told of calls of
        the driver and the runtime that are recorded, too: of those that can launch something.
        """
        cupti = self._cupti
        for kind in (*self._kinds, cupti.ActivityKind.DRIVER, cupti.ActivityKind.RUNTIME):
            (cupti.activity_enable if on else cupti.activity_disable)(kind)
        if on and not self._all_calls:
            for enable, call in self._idle_calls:
                with suppress(cupti.cuptiError):  # of a call that this version does not know
                    enable(call, 0)

    def works(self, gpu: Gpu) -> bool:
        """Whether a fill is reported: another profiler may have the GPU, or its use is forbidden.
        Where CUPTI cannot be told to leave out some calls, it is asked for all of them.
        """
        return self._reports(gpu) or self._reports(gpu, all_calls=True)

    def _reports(self, gpu: Gpu, all_calls: bool = False) -> bool:
        driver = gpu.enter()
        self._all_calls = all_calls
        self.acquire(0)
        try:
            target = driver.cuMemAlloc(256)
            try:
                token = self.launch(lambda: driver.cuMemsetD8(target, 0, 256))
                driver.cuCtxSynchronize()
                self.gather({token: 1})
                return len(self.pop(token)) == 1
            finally:
                driver.cuMemFree(target)
        finally:
            self.release(0)

    # --- launches ---

    def launch(self, work: Callable[[], Any]) -> int:
        """Does the work, all whose launches get a token; gives that."""
        token = next(self._tokens)
        with self._lock:
            self._matcher.expect(token)
        push, pop = (
            self._cupti.activity_push_external_correlation_id,
            self._cupti.activity_pop_external_correlation_id,
        )
        push(self._ours, token)
        try:
            work()
        finally:
            pop(self._ours)
        return token

    def gather(self, expected: Mapping[int, int]) -> None:
        """Asks for the records of launches that are done. `expected`: how many of each token, at
        least. What is late because others' work is still under way is waited for a little.
        """
        for turn in range(PATIENCE):
            with self._calling, suppress(self._cupti.cuptiError):  # the GPU may be lost
                self._compare_clocks()
                self._cupti.activity_flush_all(0)
            with self._lock:
                complete = all(self._matcher.count(t) >= n for t, n in expected.items())
                if self._matcher.unclaimed > self._crowded:
                    self._matcher.forget(monotonic_ns() - CLOCKS_HOLD)
                    self._crowded = max(UNCLAIMED, 2 * self._matcher.unclaimed)
            if complete or self._lacking:
                self._lacking = not complete
                return
            sleep(SHORT * (1 << turn))
        self._lacking = True

    def complete(self, token: int, count: int) -> bool:
        """Whether that many records of a launch have come. Of what a library launches (`count` 0)
        that is never known.
        """
        return count > 0 and self._matcher.count(token) >= count

    def pop(self, token: int) -> list[Ran]:
        """What a launch ran. Once."""
        with self._lock:
            return self._matcher.pop(token)

    # --- records ---

    def _compare_clocks(self) -> None:
        """CUPTI's clock is the system's, or one of its own: what counts is the difference."""
        if monotonic_ns() - self._compared < CLOCKS_HOLD:
            return
        read, found = self._cupti.get_timestamp, []
        for _ in range(READINGS):
            before = monotonic_ns()
            theirs = read()
            after = monotonic_ns()
            found.append((after - before, theirs - (before + after) // 2))
        self._offset = min(found)[1]
        self._compared = monotonic_ns()

    def _completed(self, activities: list[Any]) -> None:
        """A buffer is full, or was asked for. Called by CUPTI, from any thread."""
        external, kernel, copy, fill = (int(kind) for kind in self._kinds)
        ran, offset = {kernel, copy, fill}, self._offset
        described_nodes, matcher, new = self._described_nodes, self._matcher, tuple.__new__
        with self._lock:
            for a in activities:
                kind = a.kind
                if kind == external:
                    matcher.named(a.correlation_id, a.external_id)
                if kind not in ran:
                    continue
                node, start, end = a.graph_node_id, a.start - offset, a.end - offset
                if kind != kernel:
                    moved = COPY if kind == copy else FILL
                    matcher.ran(Ran(node, a.correlation_id, start, end, None, a.bytes, moved))
                    continue
                about = None if node in described_nodes else _described(a)
                if node:
                    described_nodes.add(node)
                # as `Ran` does it, in a third of the time
                matcher.ran(new(Ran, (node, a.correlation_id, start, end, about, 0, COPY)))


def _described(a: Any) -> Kernel:
    return Kernel(
        readable(a.name),
        (a.grid_x, a.grid_y, a.grid_z),
        (a.block_x, a.block_y, a.block_z),
        a.registers_per_thread,
        a.static_shared_memory,
        a.dynamic_shared_memory,
    )


def readable(name: str) -> str:
    """A kernel's name as it was written, without types: ``opstep.kernels.pool.cuda_pool.repeat``.

    Names are mangled as in C++: ``_ZN6opstep7kernels...E``, ``_Z4work...``.
    """
    mangled = re.match(r"_ZN?K?(?=\d)", name)
    at, parts = mangled.end() if mangled else len(name), []
    while length := re.match(r"\d+", name[at:]):
        at += length.end()
        parts.append(name[at : at + int(length[0])])
        at += int(length[0])
        if not name.startswith("_ZN"):
            break
    return ".".join(parts) or name


_collectors: list[Collector] = []
_collectors_lock = threading.Lock()


def collector() -> Collector:
    """The process's collector. Raises like `Collector`."""
    with _collectors_lock:
        if not _collectors:
            _collectors.append(Collector())
        return _collectors[0]
