"""Schedules on several streams that take little more memory than one stream does.

What runs side by side is held side by side. So a step may be made to begin later, when there is
room for its results by the schedule's estimates: little time is lost, as memory is short for a
moment, mostly. Of schedules within several limits the one is chosen that takes the least time times
the square of its memory: times are estimates, and memory that there is not ends a run. One stream
is enough where it takes less memory times time.
"""

from __future__ import annotations

from bisect import insort

from opstep.runtime.plan import memory
from opstep.runtime.plan.flat import Flat, Schedule, in_one_stream
from opstep.runtime.plan.packing import FOREVER, LITTLE, pack, rounded
from opstep.runtime.plan.schedule import Clocks, Preds, schedule

_LIMITS = (1.0, 1.1, 1.25)  # of what one stream takes


def frugal_schedule(
    flat: Flat, preds: Preds, streams: int, found: tuple[Schedule, Clocks | None]
) -> tuple[Schedule, Clocks | None]:
    """The best one on at most so many streams; clocks as `schedule` gives them. `found`: the one
    that heeds no memory.
    """
    best, talks = found, flat.talks
    room = Room(flat)
    for i, placed in enumerate(zip(best[0].stream, best[0].start, best[0].end, strict=True)):
        room.take(i, *placed)
    least = room.peak
    if least <= LITTLE:
        return best
    one = in_one_stream(len(flat.costs))
    arena = pack(memory.blocks(flat, one, memory.live_ranges(flat, one), None, None)).arena
    taken = least
    for limit in (int(arena * part) for part in _LIMITS):
        if limit >= least:
            break
        room = Room(flat, limit)
        found = schedule(flat.costs, preds, streams, flat.commits, room, talks)
        if found[1] is not None and _cost(found, room.peak) < _cost(best, taken):
            best, taken = found, room.peak
    return (one, None) if sum(flat.costs) * arena < max(best[0].end) * taken else best


def _cost(found: tuple[Schedule, Clocks | None], peak: int) -> int:
    """To be small: its memory counts twice."""
    return max(found[0].end) * peak**2


class Room:
    """The bytes that live at estimated times while steps are placed, in the order of the text.

    `limit`: what may live at once, if it can be.
    """

    def __init__(self, flat: Flat, limit: int = FOREVER):
        self.flat = flat
        self.limit = limit
        self._changes: list[tuple[int, int]] = []  # (time, bytes more), in order of time
        self._live = 0  # after all of them
        self._taken_over: dict[int, int] = {}  # buffer -> the one whose bytes it has
        self._streams: dict[int, int] = {}  # buffer -> the stream that uses it, or -1 for several
        self._over: dict[int, int] = {}  # buffer -> when all are done with it
        self._last: dict[int, int] = {}  # buffer -> the last step that uses it
        for i, step in enumerate(flat.steps):
            for v in (*step.operands, *step.results):
                if v is not None and flat.kinds[flat.homes[v]] == "temp":
                    self._last[flat.homes[v]] = i
        self._last |= {flat.homes[v]: FOREVER for v in flat.outputs}

    @property
    def peak(self) -> int:
        """The most that lives at once."""
        live = most = 0
        for _, change in self._changes:
            live += change
            most = max(most, live)
        return most

    def begin(self, i: int, stream: int, begin: int) -> int:
        """When step i can begin on a stream, that is not before `begin`."""
        changes = self._changes
        if self.limit == FOREVER or not changes:
            return begin
        wanted = sum(rounded(self.flat.sizes[b]) for b, old in self._new(i, stream) if old < 0)
        if not wanted:
            return begin
        most = self.limit - wanted
        live, k = self._live, len(changes) - 1
        if live > most:
            return max(begin, changes[-1][0])
        while k >= 0 and changes[k][0] > begin:
            live -= changes[k][1]
            if live > most:
                return changes[k][0]
            k -= 1
        return begin

    def take(self, i: int, stream: int, begin: int, end: int) -> None:
        """Step i was placed there."""
        flat, step = self.flat, self.flat.steps[i]
        for b, old in self._new(i, stream):
            if old >= 0:
                self._taken_over[b] = old
                self._last[old], self._streams[old] = self._last.get(b, i), stream
            else:
                self._change(begin, rounded(flat.sizes[b]))
        if step.workspace >= 0:
            self._change(end, -rounded(flat.sizes[step.workspace]))
        homes, kinds = flat.homes, flat.kinds
        used = {homes[v] for v in (*step.operands, *step.results) if v is not None}
        for b in {self._owner(b) for b in used if kinds[b] == "temp"}:
            self._over[b] = max(self._over.get(b, 0), end)
            if self._streams.setdefault(b, stream) != stream:
                self._streams[b] = -1
            if self._last[b] == i:
                self._change(self._over[b], -rounded(flat.sizes[b]))

    def _change(self, time: int, nbytes: int) -> None:
        insort(self._changes, (time, nbytes))
        self._live += nbytes

    def _owner(self, b: int) -> int:
        while b in self._taken_over:
            b = self._taken_over[b]
        return b

    def _new(self, i: int, stream: int) -> list[tuple[int, int]]:
        """The buffers that step i writes, each with the operand's that it takes over, or -1."""
        flat, step = self.flat, self.flat.steps[i]
        if step.op.traits.reinterprets:
            return []
        operands = [step.operands[k] for k in step.inplace if k < len(step.operands)]
        found: list[tuple[int, int]] = []
        for v in step.results:
            b = flat.homes[v]
            if flat.kinds[b] == "temp":
                old = next((o for o in operands if self._dies(o, v, i, stream)), None)
                if old is not None:
                    operands.remove(old)
                found.append((b, -1 if old is None else self._owner(flat.homes[old])))
        return found + ([(step.workspace, -1)] if step.workspace >= 0 else [])

    def _dies(self, operand: int | None, result: int, i: int, stream: int) -> bool:
        """Whether a result can have the bytes of an operand, which no other step needs."""
        flat = self.flat
        if operand is None or flat.kinds[flat.homes[operand]] != "temp":
            return False
        b = self._owner(flat.homes[operand])
        return (
            self._last[b] == i
            and flat.types[operand] == flat.types[result]
            and self._streams.get(b, stream) == stream
        )
