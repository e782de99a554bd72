"""Time of recorded runs, by what took it: computed from their timeline by Perfetto's engine in SQL.

Times are ns. A stream is busy while one of its ops runs, and waiting while it waits for another
stream; what is left between two of its slices of a step is a gap: it had nothing to do, or nobody
to hand it over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.trace.viewer.critical import Path, critical_path
from opstep.trace.viewer.engine import Engine, argument, quoted

MOST_OPS = 10


@dataclass(slots=True)
class Stream:
    """One stream in all the steps. `gaps`: how many, with their sum and the longest."""

    stream: str
    ops: int
    busy_ns: int
    waiting_ns: int
    gaps: int
    gaps_ns: int
    longest_gap_ns: int
    statistics_ns: int  # taking those of the ops' results: neither busy, nor a gap
    idle_ns: int = 0  # of the window: nothing of these
    utilisation: float = 0.0  # busy, of the window


@dataclass(slots=True)
class Op:
    """One op, however often it ran. `share`: of what all streams were busy."""

    op: str
    site: str
    file: str
    line: int
    count: int
    total_ns: int
    mean_ns: float
    share: float


@dataclass(slots=True)
class Memory:
    """The most bytes of temporary tensors, and the op that ran then."""

    peak_bytes: int
    op: str = ""
    site: str = ""
    file: str = ""
    line: int = 0


@dataclass(slots=True)
class HostTime:
    """Work of a run beside its ops. Times are without other such work that lies within it."""

    what: str
    count: int
    own_ns: int
    longest_ns: int


@dataclass(slots=True)
class RankTime:
    """One rank's part in what ranks do together. `last`: how often it was the last to come, and
    `held_up_ns`: how long all others together waited for it then, most of it at the op.
    `waited_ns`: how long it waited for others.
    """

    rank: int
    met: int
    last: int
    held_up_ns: int
    waited_ns: int
    op: str = ""
    file: str = ""
    line: int = 0


@dataclass(slots=True)
class RunSummary:
    """One run, or one step of it. `window_ns`: all that its steps took. `busy_by_streams[k]`: for
    how long exactly k streams were busy, from 1.
    """

    run: str
    graph: str
    device: str
    steps: int
    step: int | None  # the one that is summarised; None: all of them
    window_ns: int
    streams: list[Stream]
    busy_by_streams: dict[int, int]
    critical: Path | None
    ops: list[Op]
    distinct_ops: int
    memory: Memory | None
    beside: list[HostTime]  # of all steps; the recorder's own thread with it
    error: str | None = None
    workspace: str | None = None
    about: dict[str, Any] = field(default_factory=dict)  # the arguments of its steps

    @property
    def busy_ns(self) -> int:
        """For how long at least one stream was busy."""
        return sum(self.busy_by_streams.values())

    @property
    def overlap_ns(self) -> int:
        """For how long two streams or more were busy."""
        return sum(ns for k, ns in self.busy_by_streams.items() if k > 1)


def summarize(
    engine: Engine, run: str | None = None, step: int | None = None, most: int = MOST_OPS
) -> list[RunSummary]:
    """A summary of each run in the trace, or of the one whose key begins with `run`; of all steps,
    or of one. `most`: how many of the longest ops.

    Raises `InputError` where the trace has no such run or step, or none of opstep.
    """
    prepare(engine)
    keys = [key for (key,) in engine.query(_RUNS).rows]
    if not keys:
        raise InputError(f"{engine.path} has no runs of opstep")
    if run is not None:
        keys = [_chosen(run, keys)]
    found = [_summary(engine, key, step, most) for key in keys if _has(engine, key, step)]
    if not found:
        last = engine.query(f"select max(step) from op where run in ({_listed(keys)})").rows[0][0]
        raise InputError(f"there is no step {step}", hint=f"steps are numbered from 0 to {last}")
    return found


def stragglers(engine: Engine, step: int | None = None) -> list[RankTime]:
    """In a timeline of several ranks: who came late to what they do together, by rank."""
    where = "" if step is None else f" and {argument('step')} = {step}"
    met = f"""
        met as (select {argument("rank")} as rank, {argument("meeting")} as meeting, ts, name,
            {argument("file")} as file, {argument("line")} as line
            from slice where {argument("meeting")} is not null{where}),
        late as (select *, max(ts) over (partition by meeting) - ts as waited,
            row_number() over (partition by meeting order by ts desc, rank) = 1 as last,
            count(*) over (partition by meeting) as others from met),
        held as (select *, sum(waited) over (partition by meeting) * last as held_up
            from late where others > 1)"""
    rows = engine.query(f"""with {met}
        select rank, count(*), sum(last), sum(held_up), sum(waited) from held
        group by rank order by rank""").rows
    where_most = engine.query(f"""with {met}
        select rank, name, file, line, sum(held_up) as most from held
        group by rank, name, file, line order by most""").rows
    at = {
        rank: (name, file or "", line or 0) for rank, name, file, line, most in where_most if most
    }
    found = []
    for row in rows:
        rank, met, last, held_up, waited = map(int, row)
        found.append(RankTime(rank, met, last, held_up, waited, *at.get(rank, ("", "", 0))))
    return found


def prepare(engine: Engine) -> None:
    """Makes the tables that questions are asked of: ``op`` (ops, waits and statistics of streams),
    ``did`` (what the host did) and ``beside`` (what was done for the run, and in no step).
    """
    on_streams = "'op', 'wait', 'statistics'"
    for name, categories in (
        ("op", on_streams),
        ("did", f"'step', {_HOST}"),
        ("beside", _HOST_TIMES),
    ):
        engine.query(
            f"create perfetto table {name} as select id, ts, dur, ts + dur as till, track_id,"
            f" category, name, {argument('run')} as run, {argument('step')} as step, arg_set_id"
            f" from slice where category in ({categories}) and dur >= 0"
            + (f" and {argument('step')} is not null" if name == "op" else "")
        )


_HOST_TIMES = "'plan', 'bind', 'compile', 'statistics', 'record', 'disk', 'between', 'write'"
_HOST = "'launch', 'sync', 'control', 'turn'"
_RUNS = """select run from (select run, min(ts) as began from (
    select run, ts from op union all select run, ts from did
) where run is not null group by run) order by began"""


def _chosen(run: str, keys: Sequence[str]) -> str:
    found = [key for key in keys if key.startswith(run)]
    if len(found) == 1:
        return found[0]
    count = "no run" if not found else "several runs"
    hint = did_you_mean(run, keys) or f"the trace has {', '.join(keys[:8])}"
    raise InputError(f"{count} {'with' if found else ''} {run}".replace("  ", " "), hint=hint)


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(map(quoted, keys))


def _where(run: str, step: int | None) -> str:
    return f"run = {quoted(run)}" + ("" if step is None else f" and step = {step}")


def _has(engine: Engine, run: str, step: int | None) -> bool:
    where = _where(run, step)
    counts = [f"(select count(*) from {table} where {where})" for table in ("op", "did")]
    return bool(engine.query(f"select {' + '.join(counts)}").rows[0][0])


def _summary(engine: Engine, run: str, step: int | None, most: int) -> RunSummary:
    where = _where(run, step)
    windows = _windows(engine, where)
    window = sum(end - begin for begin, end in windows.values())
    streams = _streams(engine, where, window)
    ops = _ops(engine, where, sum(s.busy_ns for s in streams))
    about = _about(engine, run)
    return RunSummary(
        run=run,
        graph=about.get("graph", ""),
        device=about.get("device", ""),
        steps=len(windows),
        step=step,
        window_ns=window,
        streams=streams,
        busy_by_streams=_levels(engine, where),
        critical=critical_path(engine, run, _typical(windows), windows) if ops else None,
        ops=ops[:most],
        distinct_ops=len(ops),
        memory=_memory(engine, where, windows),
        beside=_host_times(engine, run) if step is None else [],
        error=_error(engine, run),
        workspace=about.get("workspace"),
        about=about,
    )


def _windows(engine: Engine, where: str) -> dict[int, tuple[int, int]]:
    """When each step began and ended: of one that was cut off, what is there of it."""
    rows = engine.query(
        f"select step, min(ts), max(till), max(category = 'step') from"
        f" (select step, ts, till, category from op where {where} union all"
        f" select step, ts, till, category from did where {where}) group by step order by step"
    ).rows
    steps = engine.query(f"select step, ts, till from did where {where} and category = 'step'").rows
    return {s: (a, b) for s, a, b, _ in rows} | {s: (a, b) for s, a, b in steps}


def _typical(windows: dict[int, tuple[int, int]]) -> int:
    """The step of median length."""
    by_length = sorted(windows, key=lambda s: windows[s][1] - windows[s][0])
    return by_length[(len(by_length) - 1) // 2]


def _streams(engine: Engine, where: str, window: int) -> list[Stream]:
    rows = engine.query(f"""
        with following as (
            select track_id, category, dur, ts - lag(till) over (
                partition by track_id, step order by ts, till) as gap
            from op where {where})
        select t.name, sum(category = 'op'), sum(dur * (category = 'op')),
            sum(dur * (category = 'wait')), sum(gap > 0), sum(max(gap, 0)), max(gap),
            sum(dur * (category = 'statistics'))
        from following join track t on t.id = track_id
        group by track_id order by length(t.name), t.name""").rows
    found = [Stream(name, *(int(n or 0) for n in rest)) for name, *rest in rows]
    for stream in found:
        stream.longest_gap_ns = max(stream.longest_gap_ns, 0)
        spent = stream.busy_ns + stream.waiting_ns + stream.statistics_ns
        stream.idle_ns = window - spent
        stream.utilisation = stream.busy_ns / window if window else 0.0
    return found


def _levels(engine: Engine, where: str) -> dict[int, int]:
    """For how long so many streams were busy at once."""
    rows = engine.query(f"""
        with change as (
            select ts, 1 as delta from op where {where} and category = 'op' and dur > 0 union all
            select till, -1 from op where {where} and category = 'op' and dur > 0),
        at as (select ts, sum(delta) as delta from change group by ts),
        level as (select sum(delta) over (order by ts) as level,
            lead(ts) over (order by ts) - ts as dur from at)
        select level, sum(dur) from level where level > 0 group by level order by level""").rows
    return {int(level): int(ns) for level, ns in rows}


def _ops(engine: Engine, where: str, busy: int) -> list[Op]:
    rows = engine.query(f"""
        select name, {argument("site")} as site, {argument("file")} as file,
            {argument("line")} as line, count(*), sum(dur) as total
        from op where {where} and category = 'op'
        group by name, site, file, line order by total desc, name""").rows
    return [
        Op(name, site or "", file or "", line or 0, n, total, total / n, total / max(busy, 1))
        for name, site, file, line, n, total in rows
    ]


def _memory(engine: Engine, where: str, windows: dict[int, tuple[int, int]]) -> Memory | None:
    """Memory is counted on a track beside the streams, below their device."""
    begin, end = (min(a for a, _ in windows.values()), max(b for _, b in windows.values()))
    rows = engine.query(f"""
        select c.value, c.ts from counter c join track t on t.id = c.track_id
        where t.parent_id in (select parent_id from track where id in (
            select track_id from op where {where})) and c.ts between {begin} and {end}
        order by c.value desc, c.ts limit 1""").rows
    if not rows:
        return None
    value, ts = rows[0]
    ops = engine.query(f"""
        select name, {argument("site")}, {argument("file")}, {argument("line")} from op
        where {where} and category = 'op' and ts = {ts} order by id limit 1""").rows
    name, site, file, line = ops[0] if ops else ("", "", "", 0)
    return Memory(int(value), name, site or "", file or "", line or 0)


def _about(engine: Engine, run: str) -> dict[str, Any]:
    """Arguments of a step that describe its run."""
    rows = engine.query(f"""
        select key, int_value, string_value, real_value from args where arg_set_id = (
            select arg_set_id from did where {_where(run, None)} and category = 'step'
            order by ts limit 1)""").rows
    values = {
        key.removeprefix("debug."): next((v for v in found if v is not None), None)
        for key, *found in rows
    }
    return {k: v for k, v in values.items() if k not in ("run", "step") and "." not in k}


def _host_times(engine: Engine, run: str) -> list[HostTime]:
    """By category; each without what lies within it, so that they can be added up."""
    rows = engine.query(f"""
        with inner as (
            select s.parent_id as id, sum(s.dur) as dur from beside b join slice s using (id)
            where s.parent_id is not null group by s.parent_id)
        select category, count(*), sum(b.dur - coalesce(inner.dur, 0)),
            max(b.dur - coalesce(inner.dur, 0))
        from beside b left join inner using (id) where {_where(run, None)}
        group by category order by 3 desc""").rows
    return [HostTime(what, n, int(own), int(longest)) for what, n, own, longest in rows]


def _error(engine: Engine, run: str) -> str | None:
    rows = engine.query(
        f"select {argument('error')} from slice where category = 'error'"
        f" and {argument('run')} = {quoted(run)}"
    ).rows
    return rows[0][0] if rows else None
