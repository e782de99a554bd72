"""The critical path of a step: what its end waited for, back to its beginning.

From the op that ended last, each time to what it waited for last: the op before it on its stream,
an op of another stream that an event joins to it (a flow), or the host that launched it (a flow as
well). The host in turn was at its launch after what it waited for before: the end of a stream's
work, or in control flow a value that decides how to go on. Ops on the path, made faster, make the
step faster; others do not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from opstep.trace.viewer.engine import Engine, argument, quoted

_till = attrgetter("till")


@dataclass(slots=True)
class PathOp:
    """An op on the path. `before_ns`: between what it waited for and its beginning."""

    op: str
    site: str
    file: str
    line: int
    stream: str
    dur_ns: int
    before_ns: int
    after: str  # what it waited for: stream, wait, launch or begin


@dataclass(slots=True)
class Path:
    """The path of one step, in the order of time. `length_ns`: from the step's beginning to the
    path's last end; `ops_ns` of it are in ops, the rest is between them.
    """

    step: int
    length_ns: int
    ops_ns: int
    ops: list[PathOp]


class _Slice(NamedTuple):
    id: int
    ts: int
    till: int
    track: int
    category: str
    stream: int | None  # of a sync: that is waited for
    name: str


class _Step:
    """Slices of a step, and the flows between them."""

    def __init__(self, engine: Engine, run: str, step: int):
        where = f"run = {quoted(run)} and step = {step}"
        columns = f"id, ts, till, track_id, category, {argument('stream')}"
        rows = engine.query(
            f"select {columns}, name from op where {where} and category = 'op' union all"
            f" select {columns}, name from did where {where} and category != 'step' order by ts, id"
        ).rows
        self.slices = {row[0]: _Slice(*row) for row in rows}
        self.ops: dict[int, list[_Slice]] = defaultdict(list)  # by track, one after the other
        self.index: dict[int, int] = {}  # of an op on its track
        for s in self.slices.values():
            if s.category == "op":
                self.index[s.id] = len(self.ops[s.track])
                self.ops[s.track].append(s)
        by_end = sorted(self.slices.values(), key=lambda s: (s.till, s.id))
        self.ended = [s for s in by_end if s.category == "op"]
        self.syncs = [s for s in by_end if s.category == "sync"]
        self.launched = [s.till for s in by_end if s.category == "launch"]
        turns = [s for s in by_end if s.category in ("turn", "control")]
        self.decided = sorted(t for s in turns for t in (s.ts, s.till))
        self.into: dict[int, list[_Slice]] = defaultdict(list)
        for out, into in engine.query(
            f"select slice_out, slice_in from flow where slice_in in"
            f" (select id from op where {where})"
        ).rows:
            if out in self.slices:
                self.into[into].append(self.slices[out])
        names = engine.query("select id, name from track where name glob 'stream *'").rows
        self.by_name = {name: self.ops[track] for track, name in names if track in self.ops}

    def last(self) -> _Slice:
        return max((ops[-1] for ops in self.ops.values()), key=lambda s: (s.till, s.ts, s.id))

    def before(self, op: _Slice) -> tuple[_Slice | None, str]:
        """The slice that an op waited for last, and its relation to the op."""
        found: list[tuple[int, int, int, _Slice, str]] = []
        if index := self.index[op.id]:
            earlier = self.ops[op.track][index - 1]
            found.append((earlier.till, 2, earlier.id, earlier, "stream"))
        for source in self.into[op.id]:
            if source.category == "op":
                found.append((source.till, 1, source.id, source, "wait"))
            else:  # a launch hands its ops over from its beginning on
                found.append((source.ts, 0, source.id, source, "launch"))
        *_, source, how = max((f for f in found if f[0] <= op.ts), default=(None, "begin"))
        return source, how

    def before_launch(self, launch: _Slice) -> _Slice | None:
        """The op whose end let the host go on to a launch."""
        found = []
        if done := bisect_right(self.syncs, launch.ts, key=_till):
            sync = self.syncs[done - 1]
            found.append(_last_until(sync.till, self.by_name.get(f"stream {sync.stream}", [])))
        before = bisect_right(self.launched, launch.ts)
        since = self.launched[before - 1] if before else 0
        if bisect_right(self.decided, since) < bisect_right(self.decided, launch.ts):
            # Between two launches control flow decided how to go on: by a value that was computed.
            found.append(_last_until(launch.ts, self.ended))
        return max((op for op in found if op), key=_till, default=None)


def _last_until(time: int, ops: list[_Slice]) -> _Slice | None:
    """The last of ops that had ended by then; `ops` in the order of their ends."""
    ended = bisect_right(ops, time, key=_till)
    return ops[ended - 1] if ended else None


def critical_path(
    engine: Engine, run: str, step: int, windows: dict[int, tuple[int, int]]
) -> Path | None:
    """The path of a step of a run; None where it has no ops. `summary.prepare` came before."""
    found = _Step(engine, run, step)
    if not found.ops:
        return None
    steps: list[tuple[_Slice, int, str]] = []  # op, when it could have begun, after what
    at: _Slice | None = found.last()
    visited: set[int] = set()
    begin = windows[step][0]
    while at is not None and at.id not in visited:
        visited.add(at.id)
        source, how = found.before(at)
        ready = source.till if source and how != "launch" else begin
        if source is not None and how == "launch":
            source = found.before_launch(source)
            ready = source.till if source else begin
        steps.append((at, ready, how))
        at = source
    steps.reverse()
    described = _described(engine, [s for s, _, _ in steps])
    ops = [
        PathOp(s.name, *described[s.id], s.till - s.ts, max(s.ts - ready, 0), how)
        for s, ready, how in steps
    ]
    return Path(step, steps[-1][0].till - begin, sum(op.dur_ns for op in ops), ops)


def _described(engine: Engine, slices: list[_Slice]) -> dict[int, tuple[str, str, int, str]]:
    """Site, file, line and stream of ops."""
    found: dict[int, tuple[str, str, int, str]] = {}
    for first in range(0, len(slices), 1000):
        ids = ", ".join(str(s.id) for s in slices[first : first + 1000])
        rows = engine.query(
            f"select o.id, {argument('site')}, {argument('file')}, {argument('line')}, t.name"
            f" from op o join track t on t.id = o.track_id where o.id in ({ids})"
        ).rows
        found |= {i: (site or "", file or "", line or 0, t) for i, site, file, line, t in rows}
    return found
