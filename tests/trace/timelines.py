"""Timelines for tests: what a recording's sink was told, and what the real engine reads from the
file. The two know nothing of each other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import opstep
import opstep.trace.timeline
from opstep.runtime.recording import HostRecord, StreamRecord
from opstep.trace.describe import describe
from opstep.trace.viewer.engine import Engine


class Told:
    """A sink's calls, taken down: records by run's key, steps and ends."""

    def __init__(self):
        self.runs: dict[str, Any] = {}
        self.records: list[tuple[str, StreamRecord | HostRecord]] = []
        self.steps: list[tuple[str, Any]] = []
        self.ends: list[tuple[str, Any]] = []

    @property
    def streams(self):
        return [(key, r) for key, r in self.records if isinstance(r, StreamRecord)]

    @property
    def hosts(self):
        return [(key, r) for key, r in self.records if isinstance(r, HostRecord)]

    def ops(self) -> Iterator[tuple[str, StreamRecord, int, int]]:
        """(run, record, row, step of the plan) of each op that ran."""
        for key, record in self.streams:
            for row, step in enumerate(record.activation.layout.rows[record.stream]):
                yield key, record, row, step


@contextmanager
def recording(monkeypatch, path: Path):
    """A `Recording` of a timeline, and what its sink is told."""
    told = Told()

    class Listening(opstep.trace.timeline.TimelineSink):
        def begin_run(self, run):
            told.runs[run.key] = run
            super().begin_run(run)

        def add_record(self, run, record):
            told.records.append((run.key, record))
            super().add_record(run, record)

        def end_step(self, run, step):
            told.steps.append((run.key, step))
            super().end_step(run, step)

        def end_run(self, run, end):
            told.ends.append((run.key, end))
            super().end_run(run, end)

    with monkeypatch.context() as patched:
        patched.setattr(opstep.trace.timeline, "TimelineSink", Listening)
        made = opstep.Recording(trace=path)
    with made:
        yield made, told


# --- what the engine reads ------------------------------------------------------------------------


class Slice(NamedTuple):
    """`track`: names from the run's track down. `args` without the prefix ``debug.``"""

    id: int
    ts: int
    dur: int
    name: str
    category: str
    parent: int | None
    track: tuple[str, ...]
    args: dict[str, Any]

    @property
    def brief(self) -> tuple:
        return self.track, self.name, self.ts, self.dur


class Seen:
    """All that the engine has of a trace; raises where it complains of anything."""

    def __init__(self, path: Path):
        with Engine(path) as engine:

            def query(sql: str) -> list[tuple]:
                return engine.query(sql).rows

            bad = query("select name, value from stats where severity != 'info' and value != 0")
            assert bad == []
            self.tracks = {t: (name, parent) for t, name, parent in query(TRACKS)}
            args: dict[int, dict[str, Any]] = {}
            for set_id, key, *values in query(ARGS):
                value = next((v for v in values if v is not None), None)
                args.setdefault(set_id, {})[key.removeprefix("debug.")] = value
            self.slices = {
                row[0]: Slice._make((*row[:6], self.path(row[6]), args.get(row[7], {})))
                for row in query(SLICES)
            }
            self.flows = Counter(query("select slice_out, slice_in from flow"))
            self.counts = sorted(
                (self.path(t), ts, value)
                for t, ts, value in query("select track_id, ts, value from counter")
            )

    def path(self, track: int) -> tuple[str, ...]:
        names = []
        at: int | None = track
        while at is not None:
            name, at = self.tracks[at]
            names.append(name)
        return tuple(reversed(names))

    def of(self, category: str) -> list[Slice]:
        return [s for s in self.slices.values() if s.category == category]

    def parents(self, s: Slice) -> list[str]:
        """Categories and names of what a slice stands in, from outside."""
        found = []
        while s.parent is not None:
            s = self.slices[s.parent]
            found.append(s.name)
        return found[::-1]


TRACKS = "select id, name, parent_id from track"
ARGS = "select arg_set_id, key, int_value, string_value, real_value from args"
SLICES = "select id, ts, dur, name, category, parent_id, track_id, arg_set_id from slice"


# --- what it should have read, from what the sink was told ----------------------------------------


def track(told: Told, key: str, *below: str) -> tuple[str, ...]:
    number = list(told.runs).index(key) + 1
    return f"opstep run {number}: {told.runs[key].info.graph} ({key})", *below


def expected_ops(told: Told) -> list[tuple]:
    """Of each op that ran: track, name, start, duration, arguments."""
    found = []
    for key, record, row, step in told.ops():
        activation = record.activation
        info = describe(activation.plan, activation.plan.steps[step])
        start, end = record.times[row].tolist()
        work = info.flops or info.nbytes
        args = {
            "run": key,
            "step": activation.step,
            "op": told.runs[key].first_op(activation.plan) + step,
            "name": info.name,
            "site": info.site,
            "frame": info.frame,
            "graph": info.graph,
            "file": info.file,
            "line": info.line,
            "statement": info.statement,
            "operands": json.dumps(info.operands, ensure_ascii=False) if info.operands else "",
            "results": ", ".join(f"{n}: {t}" for n, t in info.results),
            "bytes": info.nbytes,
            "flops": info.flops,
            "GFLOP/s" if info.flops else "GB/s": work / max(end - start, 1),
        }
        if info.attrs:
            args["attrs"] = json.dumps(info.attrs)
        if activation.caller is not None:
            args |= {"activation": activation.number, "turn": activation.turn}
        where = track(told, key, "CPU", f"stream {record.stream}")
        name = f"{info.results[0][0]} = {info.name}" if info.results else info.name
        found.append((where, name, start, end - start, args))
    return found
