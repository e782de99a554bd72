"""Searches the results of ops for elements that were never written, in debug mode.

With ``sync=op`` the host waits for each op and its search. On a device that replays a stretch of
launches as one piece of work (`Device.stretches`), a segment is issued at once with all its
searches, and the host waits once, where every `Seeker` `knows` all of its ops. Where a search finds
something, the segment runs again op by op, with the same results, as ops are pure. A segment that
overwrites a buffer that it has read cannot run twice, and always runs op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from opstep.runtime.device.errors import error_of_op
from opstep.runtime.device.listening import Execution, Listener
from opstep.runtime.device.protocols import Own, Stream
from opstep.runtime.device.store import Address
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.types import TensorType, u8
from opstep.runtime.plan.plan import Plan, Step

if TYPE_CHECKING:
    from opstep.runtime.device.binding import Binding

NONE = TensorType(u8, (0,))


class Search:
    """Looks in an op's results for elements with the bits that ``fill=nan`` writes. `words`: two of
    each piece of work, set to 1 when it begins (the op is done then), and when it finds any.
    """

    def __init__(self, stream: Stream, work: Sequence[Own], words: np.ndarray):
        self.work = work
        self._stream = stream
        self._words = words.reshape(-1, 2)

    def begin(self) -> None:
        self._words[...] = 0
        for work in self.work:
            self._stream.submit(work)

    @property
    def begun(self) -> bool:
        return bool(self._words[:, 0].all())

    @property
    def found(self) -> bool:
        """Known when the stream is idle."""
        return bool(self._words[:, 1].any())


@runtime_checkable
class Seeker(Listener, Protocol):
    """A listener for which results are searched. It need not be called for ops that it knows where
    nothing is found.
    """

    def issued(self, execution: Execution, search: Search | None) -> None:
        """Called when an op and then its search were launched. `search` is None where the results
        were not filled, or other ranks take part. Control flow launches nothing.
        """
        ...

    def knows(self, step: Step) -> bool:
        """Whether it need not be called for this op where nothing is found."""
        ...


class _Run(NamedTuple):
    """An op of a segment. A `search` of no elements only shows that the op is done."""

    step: Step
    stream: int
    search: Search


class Searching:
    """The searches of a binding, made as its code is."""

    def __init__(self, binding: Binding, seekers: list[Seeker]):
        plan = binding.plan
        self.binding = binding
        self.seekers = seekers
        self._quick: list[Callable[[], Any]] = []  # the segment's code without waits and listeners
        self._runs: list[_Run] = []  # of the segment
        launching = [step for step in plan.steps if step.launches]
        self._words = binding.device.words(2 * sum(max(len(s.results), 1) for s in launching))
        self._used = self._first = 0  # words, and those before this segment
        self._screens = (
            binding.device.stretches
            and binding.device.captures
            and len(seekers) == len(binding.listeners)
            and not (binding.tape or binding.flags or plan.foreign)
            and not any(s.op.is_shared(s.attrs) for s in plan.steps)
        )

    @classmethod
    def of(cls, binding: Binding) -> Searching | None:
        """None where no listener is a `Seeker`."""
        seekers = [listener for listener in binding.listeners if isinstance(listener, Seeker)]
        return cls(binding, seekers) if seekers else None

    def issue(self, work: Callable[[], Any]) -> None:
        """Adds work to the segment."""
        if self._screens:
            self._quick.append(work)

    def behind(self, execution: Execution) -> list[Callable[[], Any]]:
        """Code to call after an op's launches."""
        step, binding = execution.step, self.binding
        search = None
        if step.launches and is_searched(binding.plan, step):
            types = [binding.plan.values[v].type for v in step.results]
            places = list(zip(map(binding.address_of, step.results), types, strict=True))
            search = self._search(execution.stream, places)
        if self._screens and step.launches:
            mark = search or self._search(execution.stream, [(binding.status, NONE)])
            self._runs.append(_Run(step, execution.stream, mark))
            submit = binding.streams[execution.stream].submit
            self._quick += [partial(submit, work) for work in mark.work]
        begin = [search.begin] if search else []
        return begin + [partial(seeker.issued, execution, search) for seeker in self.seekers]

    def _search(self, stream: int, places: Sequence[tuple[Address, TensorType]]) -> Search:
        first, self._used = self._used, self._used + 2 * len(places)
        words = self._words[first : self._used]
        seek = self.binding.device.seek_payload
        work = [seek(*at, t, words[2 * k : 2 * k + 2]) for k, (at, t) in enumerate(places)]
        return Search(self.binding.streams[stream], work, words)

    def segment(self, code: list[Callable[[], Any]]) -> list[Callable[[], Any]]:
        """The code of the segment that ends here, from the code that runs it op by op."""
        quick, self._quick = self._quick, []
        runs, self._runs = self._runs, []
        words, self._first = self._words[self._first : self._used], self._used
        searched = any(is_searched(self.binding.plan, run.step) for run in runs)
        if not runs or (searched and not _can_repeat(self.binding.plan, runs)):
            return code
        return [_Screen(self, code, quick, runs, words)]


class _Screen:
    """A segment that is issued at once where all of its ops are known, else op by op."""

    def __init__(
        self, searching: Searching, code: list[Callable[[], Any]], quick: list[Callable[[], Any]],
        runs: list[_Run], words: np.ndarray,
    ):  # fmt: skip
        self._searching = searching
        self._code = code
        self._quick = quick
        self._runs = runs
        self._begun, self._found = words[::2], words[1::2]
        self._known = self._stretched = False

    def __call__(self) -> None:
        if not self._is_known():
            self._op_by_op()
            return
        self._begun[:] = self._found[:] = 0
        if not self._stretched:
            self._stretched = True
            streams = list(self._streams())
            device = self._searching.binding.device
            self._quick = device.stretch(self._quick, streams, False, None, False)
        for do in self._quick:
            do()
        self._wait()
        if self._found.any():
            self._op_by_op()

    def _op_by_op(self) -> None:
        for do in self._code:
            do()

    def _is_known(self) -> bool:
        if not self._known:
            seekers = self._searching.seekers
            self._known = all(s.knows(run.step) for run in self._runs for s in seekers)
        return self._known

    def _streams(self) -> Iterator[Stream]:
        binding = self._searching.binding
        yield from binding.streams[: max(binding.plan.streams, 1)]

    def _wait(self) -> None:
        """Waits for all streams. Each op may take as long as one that is waited for alone. An error
        names the first op that is not done.
        """
        binding = self._searching.binding
        try:
            for stream in self._streams():
                binding.device.wait_for_op(stream, lambda: int(self._begun.sum()))
        except DeviceError as error:
            last = self._runs[-1]
            run = next((run for run in self._runs if not run.search.begun), last)
            raise error_of_op(binding.plan, run.step, error, run.stream) from None


def is_searched(plan: Plan, step: Step) -> bool:
    """Whether an op can run again, and its results were filled before it ran.

    Not where a result has the memory of an operand, so that a second run would read the result, nor
    where it is a named tensor.
    """
    if not step.launches or step.op.is_shared(step.attrs):
        return False
    read = {plan.values[v].buffer for v in step.operands if v is not None}
    buffers = [plan.values[v].buffer for v in step.results]
    return all(plan.buffers[b].kind == "temp" and b not in read for b in buffers)


def _can_repeat(plan: Plan, runs: Sequence[_Run]) -> bool:
    """Whether consecutive ops read the same values when all of them run again."""
    found: set[int] = set()  # buffers that are read before they are written
    written: set[int] = set()
    for run in runs:
        found.update(b for b in run.step.reads if b not in written)
        for b in run.step.writes:
            kind = plan.buffers[b].kind
            if kind != "status" and (b in found or kind != "temp"):
                return False
        written.update(run.step.writes)
    return True
