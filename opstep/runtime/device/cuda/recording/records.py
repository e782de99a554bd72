"""From a GPU's stamps to the times of ops and waits: when they can have been.

Times are ns of CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opstep.runtime.recording import GraphLaunch, Launch, Layout


def issued(layout: Layout, launches: np.ndarray) -> list[np.ndarray]:
    """When the host began to launch each row. `launches`: i64[n, 2], see `HostRecord`."""
    result = [np.zeros(len(rows), np.int64) for rows in layout.rows]
    for launch, began in zip(layout.launches, launches[:, 0].tolist(), strict=True):
        for stream, lo, hi in launch.parts if isinstance(launch, GraphLaunch) else (launch,):
            result[stream][lo:hi] = began
    return result


def settled(times: np.ndarray, began: np.ndarray) -> np.ndarray:
    """A stream's times as they can have been: nothing begins before it was launched (`began`: i64
    [n]), nor before what stands before it ended, and all takes time: 1 ns. The clocks of host and
    GPU agree to some microseconds only.
    """
    if not len(times):
        return times
    count = np.arange(len(times))
    starts = np.maximum(times[:, 0], began)
    ends = np.maximum(times[:, 1], starts + 1)
    ends = np.maximum.accumulate(ends - count) + count  # each at least 1 ns behind the one before
    starts[1:] = np.maximum(starts[1:], ends[:-1])
    return np.stack([starts, ends], 1)


def between(moves: np.ndarray, times: np.ndarray) -> np.ndarray:
    """A stream's copies and fills, i64[n, 2] in the order of their starts, cut to the gaps between
    its rows and between each other; where nothing is left of one it ends where it begins.
    """
    found, last = moves.copy(), 0
    for k, (start, end) in enumerate(moves.tolist()):
        row = int(np.searchsorted(times[:, 1], (start + end) // 2, "right"))  # behind its middle
        begin = max(start, last, int(times[row - 1, 1]) if row else 0)
        end = max(end, begin + 1)
        end = min(end, int(times[row, 0])) if row < len(times) else end
        last = max(begin, end)
        found[k] = begin, last
    return found


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
