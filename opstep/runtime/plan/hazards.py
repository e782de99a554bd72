"""Proves that a plan is free of races, or names the ops, the bytes and the missing edge.

Each stream has a vector clock: how far it knows every other stream to be. A record keeps the
stream's clock, a wait joins it; a sync joins it to the host's clock, and through that to all that
is issued later. The caller counts as one more stream: it wrote what the run finds, the streams in
`start` come after it, and those in `finish` before what it does next.

For every byte the checker remembers the last write and, by stream, the last read since. An access
that does not come after those that it conflicts with is a race. So is a read that does not find the
value it means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from opstep.runtime.ir.collector import collector_paused
from opstep.runtime.plan.intervals import IntervalMap
from opstep.runtime.plan.listing import NOTHING, Access, Listing, listing
from opstep.runtime.plan.plan import Alloc, Call, Fill, Free, Plan, Record, Run, Sync, Wait

_CALLER = 0  # its place among the clocks; stream s is s + 1
_FILLED = -2  # as a value: the NaN payload
_BEFORE = -1  # as an instruction: what the caller did before


RACES = ("raw", "war", "waw", "reuse", "start", "finish")  # kinds that a missing edge makes


class Site(NamedTuple):
    """An op of the plan; `instruction` is its index, -1 for the caller."""

    label: str
    where: str
    stream: int
    instruction: int

    def __str__(self) -> str:
        if self.instruction == _BEFORE:
            return "the caller"
        where = f"{self.where}, " if self.where else ""
        return f"`{self.label}` ({where}stream {self.stream})"


@dataclass(frozen=True, slots=True)
class Hazard:
    """Something that can go wrong in a plan.

    Kinds: ``raw``, ``war``, ``waw`` (an access that is not ordered after one that it conflicts
    with), ``reuse`` (the same, of two buffers that share bytes), ``unwritten`` and ``overwritten``
    (a read that does not find its value, whatever the order), ``overlap`` (one op reads and writes
    the same bytes as two buffers), ``event``, ``alloc``, ``start``, ``finish`` and ``issue``.
    `second` is the op that comes too early; `first` the one it should come after. `bytes` is the
    range in the arena, or in the buffer where it has its own memory.
    """

    kind: str
    message: str
    first: Site | None = None
    second: Site | None = None
    buffers: tuple[int, ...] = ()
    bytes: tuple[int, int] | None = None
    missing: str = ""

    def __str__(self) -> str:
        return f"{self.message}; missing: {self.missing}" if self.missing else self.message


def check(plan: Plan | Listing) -> list[Hazard]:
    """All hazards of a plan, in order of issue; none means that no order of execution can go wrong.

    An edge that is missing is reported once and then taken as there. Time grows linearly with the
    plan.
    """
    with collector_paused():
        return _Checker(plan if isinstance(plan, Listing) else listing(plan)).run()


class _Cell:
    """Some bytes: whose they are, what they hold, who wrote that and who read it since.

    Accesses are (stream, number in it, instruction).
    """

    __slots__ = ("owner", "readers", "value", "writer")

    def __init__(self, owner: int, value: int, writer: tuple[int, int, int], readers=None):
        self.owner = owner
        self.value = value
        self.writer = writer
        self.readers: dict[int, tuple[int, int]] = {} if readers is None else readers

    def copy(self) -> _Cell:
        return _Cell(self.owner, self.value, self.writer, dict(self.readers))


class _Checker:
    def __init__(self, plan: Listing):
        self.plan = plan
        self.found: list[Hazard] = []
        used = [i.stream for i in plan.instructions]
        self.count = max([plan.streams - 1, *used, *plan.start, *plan.finish], default=-1) + 2
        self.clocks = [[0] * self.count for _ in range(self.count)]
        self.clocks[_CALLER][_CALLER] = 1
        self.host = [0] * self.count
        self.syncs_passed = [0] * self.count  # how many syncs each stream has heard of
        self.syncs = 0
        self.last = [_BEFORE] * self.count  # the last op of each stream
        self.events: dict[int, tuple[int, list[int]]] = {}  # event -> stream, clock
        self.reported: set[tuple] = set()
        self.alive: set[int] = set()
        self.freed: dict[int, int] = {}
        before = (_CALLER, 1, _BEFORE)
        self.arena: IntervalMap[_Cell] = IntervalMap(_Cell(NOTHING, NOTHING, before), _Cell.copy)
        self.unshared = {  # buffers with memory of their own
            b: _Cell(b, row.holds, before)
            for b, row in enumerate(plan.buffers)
            if row.offset < 0 or row.nbytes == 0
        }
        self.records: dict[int, int] = {}  # event -> where it is recorded
        for k, i in enumerate(plan.instructions):
            if type(i) is Record:
                self.records.setdefault(i.event, k)

    def run(self) -> list[Hazard]:
        for s in self.plan.start:
            self.clocks[s + 1][_CALLER] = 1
        issued: dict[int, int] = {}
        handlers = {
            Record: self._record,
            Wait: self._wait,
            Sync: self._sync,
            Alloc: self._alloc,
            Free: self._free,
            Fill: self._fill,
        }
        for k, i in enumerate(self.plan.instructions):
            handler = handlers.get(type(i))
            if handler is not None:
                handler(k, i)
            elif isinstance(i, (Run, Call)):
                if issued.setdefault(i.step, k) != k:
                    text = f"{self._site(k)} is issued twice"
                    self._report("issue", text, self._site(issued[i.step]), self._site(k))
                row = self.plan.steps[i.step]
                self._op(k, i.stream + 1, row.reads, row.writes)
        self._never_issued(issued)
        self._finish()
        return self.found

    # --- instructions ---

    def _begin(self, k: int, s: int) -> list[int]:
        """The clock of a stream whose next op this is."""
        clock = self.clocks[s]
        if self.syncs_passed[s] != self.syncs:
            self.syncs_passed[s] = self.syncs
            self._join(clock, self.host)
        clock[s] += 1
        self.last[s] = k
        if clock[_CALLER] == 0:
            clock[_CALLER] = 1
            site = self._site(k)
            self._report(
                "start",
                f"{site} can run before what the caller did first: "
                f"stream {s - 1} is not among those that wait at the start",
                Site("caller", "", -1, _BEFORE),
                site,
                missing=f"a wait of stream {s - 1} for the caller at the start",
            )
        return clock

    def _op(self, k: int, s: int, reads: tuple[Access, ...], writes: tuple[Access, ...]) -> None:
        clock = self._begin(k, s)
        for buffer, value in reads:
            self._check_alive(k, buffer)
            for low, high, cell in self._cells(buffer):
                if cell.owner != buffer or cell.value != value:
                    self._wrong_content(k, buffer, value, low, high, cell)
                t, number, _ = cell.writer
                if clock[t] < number:
                    self._race("raw", k, s, buffer, low, high, cell, cell.writer)
                cell.readers[s] = (clock[s], k)
        for buffer, value in writes:
            self._write(k, s, clock, buffer, value, reads)

    def _write(self, k: int, s: int, clock, buffer: int, value: int, reads) -> None:
        self._check_alive(k, buffer)
        for low, high, cell in self._cells(buffer):
            if cell.writer[2] == k or (
                cell.owner != buffer and any(cell.owner == b for b, _ in reads)
            ):
                self._overlap(k, buffer, cell.owner, low, high)
            for t, (number, at) in cell.readers.items():
                if clock[t] < number:
                    self._race("war", k, s, buffer, low, high, cell, (t, number, at))
            t, number, _ = cell.writer
            if clock[t] < number:
                self._race("waw", k, s, buffer, low, high, cell, cell.writer)
        cell = _Cell(buffer, value, (s, clock[s], k))
        if buffer in self.unshared:
            self.unshared[buffer] = cell
        else:
            row = self.plan.buffers[buffer]
            self.arena.assign(row.offset, row.offset + row.nbytes, cell)

    def _fill(self, k: int, i: Fill) -> None:
        self._op(k, i.stream + 1, (), (Access(i.buffer, _FILLED),))

    def _record(self, k: int, i: Record) -> None:
        s = i.stream + 1
        if i.event in self.events:
            self._report("event", f"event e{i.event} is recorded twice")
        self._join(self.clocks[s], self.host)
        self.events[i.event] = (s, list(self.clocks[s]))

    def _wait(self, k: int, i: Wait) -> None:
        if i.event in self.events:
            self._join(self.clocks[i.stream + 1], self.events[i.event][1])
            return
        later = self.records.get(i.event)
        when = (
            "is never recorded"
            if later is None
            else f"is recorded only later, {self._after(later)}"
        )
        self._report(
            "event",
            f"stream {i.stream} waits for event e{i.event}, which {when}",
            missing=f"a record of event e{i.event} before that wait",
        )

    def _sync(self, k: int, i: Sync) -> None:
        self._join(self.host, self.clocks[i.stream + 1])
        self.syncs += 1

    def _alloc(self, k: int, i: Alloc) -> None:
        if i.buffer in self.alive:
            self._report("alloc", f"buffer b{i.buffer} is allocated twice", buffers=(i.buffer,))
        self.alive.add(i.buffer)
        self.freed.pop(i.buffer, None)

    def _free(self, k: int, i: Free) -> None:
        if i.buffer not in self.alive:
            self._report(
                "alloc", f"buffer b{i.buffer} is freed and was not allocated", buffers=(i.buffer,)
            )
        self.alive.discard(i.buffer)
        self.freed[i.buffer] = k

    def _never_issued(self, issued: dict[int, int]) -> None:
        for n, row in enumerate(self.plan.steps):
            if n not in issued:
                self._report("issue", f"`{row.label}` ({row.where}) is never issued")

    def _finish(self) -> None:
        """The caller takes the results: everything has to be over."""
        plan, end = self.plan, len(self.plan.instructions)
        clock = self.clocks[_CALLER]
        self._join(clock, self.host)
        for s in plan.finish:
            self._join(clock, self.clocks[s + 1])
        for s in range(1, self.count):
            if self.last[s] != _BEFORE and clock[s] < self.clocks[s][s]:
                site = self._site(self.last[s])
                self._report(
                    "finish",
                    f"the caller can go on before {site} is done: "
                    f"stream {s - 1} is not among those that it waits for at the end",
                    site,
                    None,
                    missing=f"a wait of the caller for stream {s - 1} at the end",
                )
        for buffer, value in plan.outputs:
            self._check_alive(end, buffer)
            for low, high, cell in self._cells(buffer):
                if cell.owner != buffer or cell.value != value:
                    self._wrong_content(end, buffer, value, low, high, cell)

    # --- memory ---

    def _cells(self, buffer: int) -> list[tuple[int, int, _Cell]]:
        """(start, end, cell) of the buffer's bytes."""
        row = self.plan.buffers[buffer]
        cell = self.unshared.get(buffer)
        if cell is not None:
            return [(0, row.nbytes, cell)]
        return self.arena.segments(row.offset, row.offset + row.nbytes)

    def _check_alive(self, k: int, buffer: int) -> None:
        if buffer in self.alive or self.plan.buffers[buffer].kind != "temp":
            return
        freed = self.freed.get(buffer)
        text = "before it is allocated" if freed is None else "after it was freed"
        self._report(
            "alloc", f"{self._site(k)} uses buffer b{buffer} {text}", None, self._site(k), (buffer,)
        )

    @staticmethod
    def _join(a: list[int], b: list[int]) -> None:
        for t, n in enumerate(b):
            if n > a[t]:
                a[t] = n

    # --- reports ---

    def _site(self, k: int) -> Site:
        """The op that an instruction issues."""
        if k == _BEFORE:
            return Site("caller", "", -1, _BEFORE)
        if k == len(self.plan.instructions):
            return Site("the caller, for the outputs", "", -1, k)
        i = self.plan.instructions[k]
        if isinstance(i, (Run, Call)):
            row = self.plan.steps[i.step]
            where = f"{row.where}, frame {row.frame}" if row.frame else row.where
            return Site(row.label, where, i.stream, k)
        if isinstance(i, Fill):
            return Site(f"fill of b{i.buffer}", "", i.stream, k)
        return Site(type(i).__name__.lower(), "", i.stream, k)

    def _after(self, k: int) -> str:
        """Says where a record stands: after which op of its stream."""
        instructions = self.plan.instructions
        s = instructions[k].stream
        for j in range(k - 1, -1, -1):
            if isinstance(instructions[j], (Run, Call)) and instructions[j].stream == s:
                return f"after {self._site(j)}"
        return f"first on stream {s}"

    def _report(self, kind, message, first=None, second=None, buffers=(), bytes=None, missing=""):
        key = (kind, message)
        if key not in self.reported:
            self.reported.add(key)
            self.found.append(Hazard(kind, message, first, second, buffers, bytes, missing))

    def _race(
        self, kind: str, k: int, s: int, buffer: int, low: int, high: int, cell, other
    ) -> None:
        """Reports an access that is not ordered after `other`, and takes the edge as there."""
        t, number, at = other
        self.clocks[s][t] = max(self.clocks[s][t], number)
        first, second = self._site(at), self._site(k)
        does = "reads" if kind == "raw" else "writes"
        did = "reads" if kind == "war" else "writes"
        what = f"b{buffer}, bytes {low}..{high}"
        buffers: tuple[int, ...] = (buffer,)
        if cell.owner not in (buffer, NOTHING):
            kind, buffers = "reuse", (cell.owner, buffer)
            what += f", which b{cell.owner} has before it"
        self._report(
            kind,
            f"{second} {does} {what}, and can do so before {first} {did} it",
            first,
            second,
            buffers,
            (low, high),
            f"a wait on an event recorded after {first} before {second}",
        )

    def _wrong_content(self, k: int, buffer: int, value: int, low: int, high: int, cell) -> None:
        second = self._site(k)
        what = f"b{buffer}, bytes {low}..{high}"
        if cell.owner == NOTHING or (cell.owner == buffer and cell.value < 0):
            text = f"{second} reads {what}, which nothing wrote"
            self._report("unwritten", text, None, second, (buffer,), (low, high))
            return
        first = self._site(cell.writer[2])
        text = f"{second} reads v{value} in {what}, which {first} overwrote"
        text += f" as b{cell.owner}" if cell.owner != buffer else f" with v{cell.value}"
        buffers = tuple(dict.fromkeys((cell.owner, buffer)))
        self._report("overwritten", text, first, second, buffers, (low, high))

    def _overlap(self, k: int, buffer: int, other: int, low: int, high: int) -> None:
        site = self._site(k)
        text = f"{site} writes b{buffer} over b{other}, bytes {low}..{high}, which it uses too"
        self._report("overlap", text, site, site, (other, buffer), (low, high))
