"""From what a GPU reports to the times of ops: what belongs to which launch, row by row.

What is reported comes in any order, and some of it may be missing. Times are ns of
CLOCK_MONOTONIC; 0 stands for one that is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from opstep.runtime.recording import COPY, GraphLaunch, Kernel, Launch, Layout

NO_ROW = -1  # of statistics, which no row tells of; steps without them leave them out
MOVED = -2  # of copies and fills
FLAGS = -3  # of what looks for NaNs at the end, in every step


class Ran(NamedTuple):
    """A kernel, copy or fill that ran. `node` of a graph; 0 outside of graphs. `correlation`: of
    the call of the driver that launched it; later calls have higher ones.
    """

    node: int
    correlation: int
    start: int
    end: int
    kernel: Kernel | None  # None: a copy or a fill, or nothing new
    nbytes: int = 0  # of a copy or a fill
    kind: int = COPY


class Matcher:
    """Finds what a launch ran. Reports name a call of the driver, and other reports tell which of
    our launches (`token`) made that call; the one may come before the other.
    """

    def __init__(self) -> None:
        self._reports: dict[int, list[Ran]] = {}  # by token
        self._tokens: dict[int, int] = {}  # of calls
        self._calls: dict[int, list[int]] = {}  # by token
        self._early: dict[int, list[Ran]] = {}  # by call: whose launch is not known

    def expect(self, token: int) -> None:
        self._reports[token] = []
        self._calls[token] = []

    def named(self, correlation: int, token: int) -> None:
        """A call was made by a launch."""
        if token in self._reports:
            self._tokens[correlation] = token
            self._calls[token].append(correlation)
            self._reports[token] += self._early.pop(correlation, ())

    def ran(self, what: Ran) -> None:
        token = self._tokens.get(what.correlation)
        if token is None:
            self._early.setdefault(what.correlation, []).append(what)
        else:
            self._reports[token].append(what)

    def count(self, token: int) -> int:
        return len(self._reports[token])

    def pop(self, token: int) -> list[Ran]:
        """What was found of a launch; what comes later is nobody's."""
        for correlation in self._calls.pop(token):
            del self._tokens[correlation]
        return self._reports.pop(token)

    def forget(self, before: int) -> None:
        """Drops what ended before a time and is nobody's: work that is not of a recorded run."""
        self._early = {c: ran for c, ran in self._early.items() if ran[-1].end >= before}

    @property
    def unclaimed(self) -> int:
        return len(self._early)


class Part(NamedTuple):
    """What a launch has for a stream: the row of each kernel, in order; one row alone where it is
    not known how many kernels that has.
    """

    stream: int
    rows: tuple[int, ...]
    exact: bool = True  # a kernel for each of the rows

    def fill(self, rows: Rows, reports: Sequence[Ran]) -> None:
        rows.add(self.matched(reports))

    def matched(self, reports: Sequence[Ran]) -> list[tuple[int, int, Ran]]:
        """(stream, row, what ran); nothing where that cannot be told."""
        reports = sorted(reports, key=lambda r: r.correlation)
        if not self.exact:
            return [(self.stream, self.rows[0], r) for r in reports]
        if len(reports) != len(self.rows):
            return []
        return [(self.stream, row, r) for row, r in zip(self.rows, reports, strict=True)]


class Nodes:
    """The nodes of a captured graph: where each belongs, in the order in which they were captured.

    A graph's nodes are numbered upwards as they are made, but with gaps: which number is which node
    is known when one launch was reported in full.
    """

    def __init__(self, places: Sequence[tuple[int, int]]):
        self.places = places  # (stream, row)
        self._places_of: dict[int, tuple[int, int]] = {}
        self._spans = _spans(places)
        self._plain = MOVED not in (row for _, row in places)

    def fill(self, rows: Rows, reports: Sequence[Ran]) -> None:
        """Each launch once; a launch in full is the rule, and goes fast."""
        complete = self._plain and self._places_of and len(reports) == len(self.places)
        if not complete or any(ran.kernel is not None for ran in reports):
            rows.add(self.matched(reports))
            return
        times = np.array([(start, end) for _, _, start, end, *_ in sorted(reports)], np.int64)
        for stream, (which, first, last) in self._spans.items():
            rows.times[stream][which, 0] = times[first, 0]
            rows.times[stream][which, 1] = times[last, 1]

    def matched(self, reports: Iterable[Ran]) -> list[tuple[int, int, Ran]]:
        """(stream, row, what ran); nothing where that cannot be told."""
        reports = sorted(reports)
        if not self._places_of and len(reports) == len(self.places):
            ids = [r.node for r in reports]
            if len(set(ids)) == len(ids):
                self._places_of = dict(zip(ids, self.places, strict=True))
        placed = [(self._places_of.get(r.node), r) for r in reports]
        return [(*place, r) for place, r in placed if place is not None]


def _spans(places: Sequence[tuple[int, int]]) -> dict[int, tuple[np.ndarray, ...]]:
    """By stream: rows, and the indices of the first and the last node of each; a row's nodes run in
    their order.
    """
    ends: dict[tuple[int, int], tuple[int, int]] = {}
    for index, place in enumerate(places):
        if place[1] >= 0:
            ends[place] = (ends.get(place, (index, 0))[0], index)
    return {
        stream: tuple(
            np.array([(row, *e) for (s, row), e in ends.items() if s == stream], np.int64).T
        )
        for stream in dict.fromkeys(s for s, _ in ends)
    }


class Rows:
    """Times of the rows of one activation, by stream."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.times = [np.zeros((len(rows), 2), np.int64) for rows in layout.rows]
        self.kernels: dict[tuple[int, int], list[Kernel]] = {}
        self.moves: list[list[tuple[int, int, int, int]]] = [[] for _ in layout.rows]

    def add(self, matched: Iterable[tuple[int, int, Ran]]) -> None:
        """A row's time is from the start of its first kernel to the end of its last."""
        for stream, row, ran in matched:
            if row == MOVED:
                self.moves[stream].append((ran.start, ran.end, ran.nbytes, ran.kind))
            if row < 0:
                continue
            times = self.times[stream]
            start = times[row, 0]
            times[row, 0] = min(start, ran.start) if start else ran.start
            times[row, 1] = max(times[row, 1], ran.end)
            if ran.kernel is not None:
                self.kernels.setdefault((stream, row), []).append(ran.kernel)

    @property
    def missing(self) -> int:
        """Rows that nothing was reported of."""
        return sum(int((times[:, 0] == 0).sum()) for times in self.times)


def issued(layout: Layout, launches: np.ndarray) -> list[np.ndarray]:
    """When the host began to launch each row. `launches`: i64[n, 2], see `HostRecord`."""
    result = [np.zeros(len(rows), np.int64) for rows in layout.rows]
    for launch, began in zip(layout.launches, launches[:, 0].tolist(), strict=True):
        for stream, lo, hi in launch.parts if isinstance(launch, GraphLaunch) else (launch,):
            result[stream][lo:hi] = began
    return result


def settled(times: np.ndarray, began: np.ndarray) -> np.ndarray:
    """A stream's times as they can have been: nothing begins before it was launched (`began`: i64
    [n]), nor before what stands before it ended, and all takes time. The clocks of host and GPU
    agree to some microseconds only; what is not known takes 1 ns.
    """
    if not len(times):
        return times
    count = np.arange(len(times))
    starts = np.maximum(times[:, 0], began)
    ends = np.maximum(times[:, 1], starts + 1)
    ends = np.maximum.accumulate(ends - count) + count  # each at least 1 ns behind the one before
    starts[1:] = np.maximum(starts[1:], ends[:-1])
    return np.stack([starts, ends], 1)


def between(moves: Sequence[tuple[int, int, int, int]], times: np.ndarray) -> np.ndarray:
    """A stream's copies and fills, i64[n, 4] in the order of their starts, cut to the gaps between
    its rows and between each other.
    """
    result, last = [], 0
    for start, end, nbytes, kind in sorted(moves):
        row = int(np.searchsorted(times[:, 1], (start + end) // 2, "right"))  # behind its middle
        begin = max(start, last, int(times[row - 1, 1]) if row else 0)
        end = max(end, begin + 1)
        end = min(end, int(times[row, 0])) if row < len(times) else end
        if end > begin:
            result.append((begin, end, nbytes, kind))
            last = end
    return np.array(result, np.int64).reshape(-1, 4)


def waits(
    layout: Layout, stream: int, times: Sequence[np.ndarray], began: Sequence[np.ndarray]
) -> np.ndarray:
    """i64[n, 2]: when a stream stood still for others. It begins where it had nothing else to do,
    and ends with the row that was waited for.
    """
    own = times[stream]
    first = min((int(b.min()) for b in began if len(b)), default=0)
    result, last = [], 0
    for wait in layout.waits:
        if wait.stream != stream:
            continue
        begin = int(own[wait.row - 1, 1]) if wait.row else 0
        end = int(times[wait.source][wait.source_row, 1]) if wait.source_row >= 0 else 0
        latest = max(end, 0)
        if wait.row < len(own):
            begin = max(begin, int(began[stream][wait.row]))
            latest = min(latest, int(own[wait.row, 0]))
        begin = max(begin, last, first)
        last = max(begin, latest)
        result.append((begin, last))
    return np.array(result, np.int64).reshape(-1, 2)


def merged(launches: Sequence[Launch], groups: Sequence[Sequence[int]]) -> tuple[list, list[int]]:
    """The launches of a plan where each group is launched as one graph; and for each launch the
    place of what it became part of.
    """
    first = {group[0]: group for group in groups if group}
    inside = {k for group in groups for k in group[1:]}
    result: list[Launch | GraphLaunch] = []
    places = [-1] * len(launches)
    for k, launch in enumerate(launches):
        if k in inside:
            continue
        group = first.get(k, (k,))
        for member in group:
            places[member] = len(result)
        result.append(_graph_launch([launches[m] for m in group]) if k in first else launch)
    return result, places


def _graph_launch(launches: Sequence[Launch]) -> GraphLaunch:
    """Rows lo..hi of each stream; those of a group follow each other."""
    spans: dict[int, tuple[int, int]] = {}
    for stream, lo, hi in launches:
        before = spans.get(stream, (lo, hi))
        spans[stream] = (min(lo, before[0]), max(hi, before[1]))
    return GraphLaunch(tuple(Launch(s, lo, hi) for s, (lo, hi) in sorted(spans.items())))
