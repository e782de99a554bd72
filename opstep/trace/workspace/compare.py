"""The divergence of two runs: the first op, in the order of execution, whose statistics differ.

Executions are matched by step, by the op's site, and by how many times it ran in the step before
(turns of a loop). Operands come before what is computed from them, so that the first difference is
where it began, if the statistics of all ops were taken.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from opstep.runtime.ir.types import DTYPES
from opstep.trace.workspace.blobs import read_array
from opstep.trace.workspace.reading import readable
from opstep.trace.workspace.runs import FIGURES, RecordedRun

# Counts of elements that a rounding error cannot change; the others may differ where `rtol` is
# given, because a figure crosses the border of a bin.
_FIRM = {"count", "nan", "posinf", "neginf", "unwritten"}
PYTORCH = ("torch", "inductor")  # devices of runs that were recorded beside one of a program
_SETTINGS = (
    "program", "graph", "device", "streams", "alloc", "fill", "sync", "threads", "seed", "steps",
    "selection", "every", "also", "version", "host", "kernels",
)  # fmt: skip


class Figure(NamedTuple):
    """One figure of a tensor in both runs."""

    name: str
    first: Any
    second: Any


@dataclass(frozen=True)
class Difference:
    """A tensor whose statistics differ. `figures` is empty where only one run has it (`only`)."""

    step: int  # -1: an input, a param or a state, as it was before the first
    turn: int  # how many times the op ran in the step before
    op: str
    site: str
    value: str
    file: str | None  # inputs have none
    line: int | None
    statement: str | None
    figures: list[Figure] = field(default_factory=list)
    only: str | None = None  # key of the run that has it


@dataclass(frozen=True)
class Comparison:
    """`settings`: what differs in how they ran; `initial`: inputs, params and states that differ
    before the first step. `first`: the first op that differs; None where all that both have is the
    same. `compared` and `differing` count tensors, up to the end of the first step that differs.
    """

    a: RecordedRun
    b: RecordedRun
    settings: list[Figure]
    initial: list[Difference]
    first: Difference | None
    compared: int
    differing: int
    tensors: list[Figure]  # outputs, params and states at the end: digests that differ

    @property
    def same(self) -> bool:
        return self.first is None and not self.initial and not self.tensors


@readable
def compare(
    connection: sqlite3.Connection, a: RecordedRun, b: RecordedRun, rtol: float = 0.0
) -> Comparison:
    """`rtol`: relative difference that a figure, or an element at the end, may have; 0 asks for the
    same bits.
    """
    settings = [
        Figure(name, getattr(a, name), getattr(b, name))
        for name in _SETTINGS
        if getattr(a, name) != getattr(b, name)
    ]
    if rtol == 0 and (count := _all_same(connection, a, b)):
        return Comparison(a, b, settings, [], None, count, 0, _ends(connection, a, b))
    compared, differing, first = 0, 0, None
    initial: list[Difference] = []
    given: set[Key] = set()
    for step, mine, others in _common_steps(_steps(connection, a), _steps(connection, b)):
        both = mine.keys() & others.keys()
        mine = {k: v for k, v in mine.items() if k in both or not _is_partial(b)}
        others = {k: v for k, v in others.items() if k in both or not _is_partial(a)}
        compared += len(both)
        found = [pair for pair in _differences(mine, others, rtol) if pair[0] not in given]
        described = (_describe(connection, a, b, step, *pair, mine, others) for pair in found)
        if step < 0:
            initial += described
            given = {key for key, _ in found}  # steps find what is reported already
        elif found:
            differing, first = len(found), next(described)
            break
    ends = _ends(connection, a, b, rtol)
    return Comparison(a, b, settings, initial, first, compared, differing, ends)


def _all_same(connection: sqlite3.Connection, a: RecordedRun, b: RecordedRun) -> int:
    """The number of tensors of both, where the digests of all ops' statistics are equal; else 0."""
    digests = [
        connection.execute(
            "select site, name, digest from ops where run = ? and op >= 0 and (digest is not null "
            "or exists (select 1 from stats where stats.run = ops.run and stats.op = ops.op)) "
            "order by 1, 2",
            (run.id,),
        ).fetchall()
        for run in (a, b)
    ]
    figures = ", ".join(f'stats."{name}"' for name in (*FIGURES, "lowest", "histogram"))
    initial = [
        connection.execute(
            f"select site, {figures} from stats join ops using (run, op) where stats.run = ? "
            "and op < 0 order by site, stats.step, stats.execution",  # they have no digests
            (run.id,),
        ).fetchall()
        for run in (a, b)
    ]
    complete = a.ended and b.ended and all(digest is not None for *_, digest in digests[0])
    if not complete or digests[0] != digests[1] or initial[0] != initial[1]:
        return 0
    return connection.execute("select count(*) from stats where run = ?", (a.id,)).fetchone()[0]


def _is_partial(run: RecordedRun) -> bool:
    """Whether it is PyTorch's own, which has not all that the program's ops give."""
    return run.device.partition(":")[0] in PYTORCH


Key = tuple[str, int, int]  # site, how many times it ran before, result
Step = dict[Key, tuple]


def _common_steps(
    mine: Iterator[tuple[int, Step]], theirs: Iterator[tuple[int, Step]]
) -> Iterator[tuple[int, Step, Step]]:
    """The steps that both have figures of: --stats-every may differ, and one may be longer."""
    last: tuple[int | None, Step] = (None, {})
    (step, figures), (other, others) = next(mine, last), next(theirs, last)
    while step is not None and other is not None:
        if step == other:
            yield step, figures, others
        earlier = min(step, other)
        if step == earlier:
            step, figures = next(mine, last)
        if other == earlier:
            other, others = next(theirs, last)


def _steps(connection: sqlite3.Connection, run: RecordedRun) -> Iterator[tuple[int, Step]]:
    """Step by step: the figures of each tensor, in the order of execution."""
    sites = dict(connection.execute("select op, site from ops where run = ?", (run.id,)))
    figures = ", ".join(f'stats."{name}"' for name in FIGURES)
    rows = connection.execute(
        f"select stats.step, stats.op, stats.execution, stats.result, executions.start_ns, "
        f"{figures}, stats.lowest, stats.histogram from stats "
        "left join executions using (run, execution) where stats.run = ? "
        "order by stats.step, stats.execution, stats.result",
        (run.id,),
    )
    for step, group in groupby(rows, key=lambda row: row[0]):
        times: dict[int, list[int]] = {}  # by op: its executions in this step
        found: list[tuple[int, Key, tuple]] = []
        for _, op, execution, result, start, *rest in group:
            before = times.setdefault(op, [])
            if not before or before[-1] != execution:
                before.append(execution)
            found.append((start or 0, (sites[op], len(before) - 1, result), tuple(rest)))
        found.sort(key=lambda entry: entry[0])  # across streams; stable within one
        yield step, {key: rest for _, key, rest in found}


def _differences(mine: Step, others: Step, rtol: float) -> Iterator[tuple[Key, list[Figure]]]:
    """Those of `mine` that differ or are missing, then those that only the other run has."""
    for key, row in mine.items():
        other = others.get(key)
        if other is None:
            yield key, []
        elif row != other and (figures := _figures(row, other, rtol)):
            yield key, figures
    for key in others:
        if key not in mine:
            yield key, []


def _figures(row: tuple, other: tuple, rtol: float) -> list[Figure]:
    """The figures that differ by more than `rtol`."""
    pairs = [*zip(FIGURES, row, other, strict=False)]
    largest = next((x for n, x, _ in pairs if n == "absmax"), None) or 0.0
    found = [Figure(n, x, y) for n, x, y in pairs if not _close(n, x, y, rtol, largest)]
    if rtol == 0 and row[-2:] != other[-2:]:
        texts = [f"{bins or '[]'} from 2^{lowest}" for lowest, bins in (row[-2:], other[-2:])]
        found.append(Figure("histogram", *texts))
    return found


def _close(name: str, x: Any, y: Any, rtol: float, largest: float) -> bool:
    """`largest`: of the elements; where they cancel out, their mean has its error."""
    if x == y or (name == "unwritten" and None in (x, y)):  # not counted in all modes
        return True
    if x is None or y is None or name in _FIRM or rtol == 0:
        return False
    if name in ("zero", "subnormal"):
        return True
    return math.isclose(x, y, rel_tol=rtol, abs_tol=rtol * largest)


def _describe(
    connection: sqlite3.Connection,
    a: RecordedRun,
    b: RecordedRun,
    step: int,
    key: Key,
    figures: list[Figure],
    mine: Step,
    others: Step,
) -> Difference:
    site, turn, result = key
    run = a if key in mine else b
    row = connection.execute(
        "select ops.name, results.name, ops.file, ops.line, ops.statement from ops "
        "join results using (run, op) where ops.run = ? and ops.site = ? and results.result = ?",
        (run.id, site, result),
    ).fetchone()
    op, value, file, line, statement = row
    only = None if key in mine and key in others else run.key
    return Difference(step, turn, op, site, value, file, line, statement, figures, only)


def _ends(
    connection: sqlite3.Connection, a: RecordedRun, b: RecordedRun, rtol: float = 0.0
) -> list[Figure]:
    """Outputs and named tensors at the end, after as many steps, that both have and that differ."""
    if a.steps != b.steps:
        return []
    mine, theirs = (
        {(t.kind, t.name): t for t in run.tensors if t.kind != "input" and t.step == at}
        for run, at in ((a, a.steps - 1), (b, b.steps - 1))
    )
    pairs = [(name, t, theirs[kind, name]) for (kind, name), t in mine.items()
             if (kind, name) in theirs]  # fmt: skip
    return [
        Figure(name, t.digest, other.digest)
        for name, t, other in pairs
        if t.digest != other.digest and not _all_close(connection, t, other, rtol)
    ]


def _all_close(connection: sqlite3.Connection, a: Any, b: Any, rtol: float) -> bool:
    """Whether floats are as far apart at most: each by itself, or by all elements' mean square."""
    if rtol == 0 or a.shape != b.shape or not all(DTYPES[t.dtype].is_float for t in (a, b)):
        return False
    x, y = (read_array(connection, t).astype(np.float64) for t in (a, b))
    finite = y[np.isfinite(y)]
    floor = rtol * float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    return np.allclose(x, y, rtol, floor, equal_nan=True)
