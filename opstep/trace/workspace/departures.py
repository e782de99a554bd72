"""Tensors whose figures left their usual range, in the order of time: why a run went wrong slowly.

The usual range is that of the early steps: median and median absolute deviation of the logarithms.
What grows no faster than the number of steps, as params and averages do in healthy training, is
within it; what grows faster leaves it, and so does a tensor that gets NaNs or infinities.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from opstep.trace.workspace.reading import readable
from opstep.trace.workspace.runs import RecordedRun

SHARE, FEWEST, MOST = 0.25, 5, 200  # of the steps that are early: a share, and how many
WIDE, WIDE_FACTOR = 8.0, 3.0  # standard deviations, and at the least a factor
NARROW, NARROW_FACTOR = 3.0, 1.25
RISE = 0.1  # of the logarithm in the early steps: it grows anyway
NEARLY = 0.9  # of the steps from there to the end are outside
LASTING = 3  # steps at the least
FAR = 30.0  # times the range: at the end of a run one such step is enough
_DEVIATION = 1.4826  # standard deviations in a median absolute one, of a normal distribution

_SERIES = """
select stats.op, stats.result, stats.step, max(stats.absmax), max(stats.std),
  max(stats.nan + stats.posinf + stats.neginf)
from main.stats join results using (run, op, result)
where stats.run = ? and stats.op >= 0
  and results.dtype not in ('bool', 'i8', 'i16', 'i32', 'i64', 'u8', 'u16', 'u32', 'u64')
group by stats.op, stats.result, stats.step order by stats.op, stats.result, stats.step
"""
_NAMED = """
select ops.op, result, results.name, ops.site, ops.name, ops.file, ops.line
from results join ops using (run, op) where run = ?
"""


@dataclass(frozen=True)
class Departure:
    """A tensor (or a metric, whose `op` is "") that left its usual range at `step`: `figure` was
    `value`, usually between `low` and `high`; `last` is its last value that is finite. NaN or inf
    where that is what it got.
    """

    step: int
    tensor: str
    figure: str
    low: float
    high: float
    value: float
    last: float
    site: str
    op: str
    file: str | None
    line: int | None


class Reasons(NamedTuple):
    """Of a run of so many `steps`: what left its usual range, first things first; how many steps
    are early; how many `figures`, of tensors and metrics, were looked at.
    """

    departures: list[Departure]
    early: int
    steps: int
    figures: int


class _Series(NamedTuple):
    """One figure by step. `op`: None of a metric."""

    op: int | None
    result: int
    figure: str
    steps: np.ndarray
    values: np.ndarray


@readable
def departures(connection: sqlite3.Connection, run: RecordedRun) -> Reasons:
    """Tensors and metrics that left their usual range in a run."""
    rows = connection.execute(_SERIES, (run.id,)).fetchall()
    series = [*_stats(rows), *_metrics(connection, run.id)]
    steps = max((int(s.steps[-1]) + 1 for s in series), default=0)
    early = min(max(FEWEST, round(SHARE * steps)), MOST)
    named: dict[Any, list] = {
        (op, k): about for op, k, *about in connection.execute(_NAMED, (run.id,))
    }
    firsts: dict[tuple[int, int] | str, tuple[int, Departure]] = {}
    for order, one in enumerate(series):
        left = leaving(one.steps, one.values, early)
        if left is None:
            continue
        at, low, high = left
        finite = one.values[np.isfinite(one.values)]
        last = float(finite[-1]) if finite.size else math.nan
        key = one.figure if one.op is None else (one.op, one.result)
        name, site, op, file, line = named.get(key, (one.figure, "", "", None, None))
        found = Departure(
            int(one.steps[at]), name or site, one.figure, low, high, float(one.values[at]), last,
            site, op, file, line,
        )  # fmt: skip
        if key not in firsts or found.step < firsts[key][1].step:
            firsts[key] = order, found
    ranked = [found for _, found in sorted(firsts.values(), key=lambda o: (o[1].step, o[0]))]
    count = len({s.figure if s.op is None else (s.op, s.result) for s in series})
    return Reasons(_without_copies(ranked), early, steps, count)


def _without_copies(ranked: list[Departure]) -> list[Departure]:
    """A named tensor stands for what it was updated with."""
    named = {_figures(d): d for d in ranked if d.op == "update"}
    return list(dict.fromkeys(named.get(_figures(d), d) for d in ranked))


def _figures(one: Departure) -> tuple:
    return one.step, one.figure, one.low, one.high, one.value, one.last


class _Leaving(NamedTuple):
    """The step, by its index, at which a figure left its usual range, from `low` to `high`."""

    at: int
    low: float
    high: float


def leaving(steps: np.ndarray, values: np.ndarray, early: int) -> _Leaving | None:
    """The step at which a figure leaves its usual range. `early`: so many of the steps say what is
    usual.

    A wide range, which healthy training never leaves, says whether it does; a narrow one, which it
    was beyond from there on, says since when.
    """
    size = np.abs(values)
    some = np.flatnonzero((size > 0) | ~np.isfinite(size))  # zeros say nothing of a scale
    if not some.size:
        return None
    start = int(some[0])
    begun, size = steps[start:] - steps[start], size[start:]
    base = size[begun < early]
    base = np.log(base[np.isfinite(base) & (base > 0)])
    if base.size < FEWEST:
        bad = np.flatnonzero(~np.isfinite(size))
        return _Leaving(start + int(bad[0]), math.nan, math.nan) if bad.size else None
    middle, deviation, rise = _robust(base)
    growth = np.log(np.maximum(1.0, 2.0 * (begun + 1) / early))
    with np.errstate(divide="ignore"):
        above = np.log(size) - middle
    above = np.where(np.isnan(above), np.inf, above)
    wide = max(WIDE * deviation, math.log(WIDE_FACTOR))
    narrow = max(NARROW * deviation, math.log(NARROW_FACTOR))
    since = _last_stretch(above > narrow + (growth if rise > RISE else 0.0))
    most = float((above - growth)[since:].max(initial=-math.inf)) - wide
    if most <= 0 or (len(above) - since < LASTING and most < math.log(FAR)):
        return None
    return _Leaving(start + since, math.exp(middle - narrow), math.exp(middle + narrow))


def _last_stretch(outside: np.ndarray) -> int:
    """The begin of the stretch to the end in which nearly all steps are outside; the end, if there
    is none.
    """
    back = np.cumsum(outside[::-1])[::-1]
    share = back / np.arange(len(outside), 0, -1)
    found = np.flatnonzero(outside & (share >= NEARLY))
    return int(found[0]) if found.size else len(outside)


def _robust(base: np.ndarray) -> tuple[float, float, float]:
    """The median; the standard deviation around the trend, from the median absolute one; by how
    much the trend rises from the first half to the second.
    """
    half = len(base) // 2
    rise = float(np.median(base[half:] - base[: len(base) - half]))
    flat = base - rise / half * np.arange(len(base))
    spread = _DEVIATION * float(np.median(np.abs(flat - np.median(flat))))
    return float(np.median(base)), spread, rise


def _stats(rows: list[tuple]) -> Iterator[_Series]:
    """The figures of each tensor; where it has NaNs or infinities, and had none at first, these."""
    starts = [i for i, row in enumerate(rows) if i == 0 or row[:2] != rows[i - 1][:2]]
    for first, end in zip(starts, [*starts[1:], len(rows)][: len(starts)], strict=True):
        part = rows[first:end]
        steps = np.array([row[2] for row in part])
        odd = np.array([row[5] or 0 for row in part]) > 0
        odd &= not odd[0]  # what the program writes, as a mask does
        for k, figure in ((3, "absmax"), (4, "std")):
            found = np.array([math.nan if row[k] is None else row[k] for row in part], float)
            values = np.where(odd, math.inf, np.where(np.isnan(found), 0.0, found))
            yield _Series(part[0][0], part[0][1], figure, steps, values)


def _metrics(connection: sqlite3.Connection, run: int) -> Iterator[_Series]:
    rows = connection.execute(
        "select name, step, value from metrics where run = ? and step >= 0 "
        "and name not in ('seconds', 'epoch') and name not in "
        "(select name from results where run = ? and name is not null) order by name, step",
        (run, run),
    )
    named: dict[str, list[tuple[int, float]]] = {}
    for name, step, value in rows:
        named.setdefault(name, []).append((step, math.nan if value is None else value))
    for name, points in named.items():
        steps, values = np.array(points, float).T
        yield _Series(None, 0, name, steps.astype(int), values)
