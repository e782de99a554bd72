"""Records of what ran without a plan, such as the ops of a Python script in eager PyTorch: they are
numbered in the order in which they were first met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.runtime.recording import Activation
from opstep.runtime.statistics import WORDS
from opstep.trace.packets import STEP
from opstep.trace.workspace.rows import plain, to_json

if TYPE_CHECKING:
    import numpy as np

    from opstep.trace.packets import PacketTemplate, Tracks

_ROW_BYTES = 300  # of an execution, with what names it


class ResultMet(NamedTuple):
    """A result of an op, as it was the first time."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(slots=True)
class OpMet:
    """An op of no plan. `levels`: what it ran in, outer ones first, which a timeline nests;
    `frame`: the same as one text. `first`: the number of the first of `results`, where more of them
    came later than the op itself.
    """

    op: int
    name: str
    site: str
    frame: str
    levels: tuple[str, ...]
    file: str
    line: int
    statement: str
    operands: list[tuple[str, str]]
    sources: list[Any]
    attrs: dict[str, Any]
    nbytes: int
    graph: str
    stream: int
    results: list[ResultMet] = field(default_factory=list)
    first: int = 0
    is_new: bool = True

    def row(self, run: int) -> tuple:
        """Of `ops`, without its sums."""
        return (
            run, self.op, self.name, self.site, self.graph, self.graph, self.frame,
            plain(self.file) or None, self.line or None, plain(self.statement),
            to_json(self.operands), to_json(self.sources), to_json(self.attrs), self.stream,
            self.nbytes, None, None, None,
        )  # fmt: skip

    def result_rows(self, run: int) -> list[tuple]:
        return [
            (run, self.op, k, r.name, r.dtype, to_json(r.shape), r.nbytes)
            for k, r in enumerate(self.results, self.first)
        ]


@dataclass(slots=True, eq=False)
class FreeRecord:
    """Ops that one thread (`stream`) ran in a step, or in part of one.

    `ops`: numbers i64[n]; `turns`: how often each had run before in the step; `times`: i64[n, 2].
    `stats`: i64[m, WORDS], of the result `results[k]` of the op at `rows[k]`. `met`: ops and
    results that are new; `known`: all ops by their numbers, of which there were `count`. `marks`:
    moments that a timeline names.
    """

    activation: Activation  # of no layout
    stream: int
    ops: np.ndarray
    turns: np.ndarray
    times: np.ndarray
    rows: np.ndarray
    results: np.ndarray
    is_float: np.ndarray
    stats: np.ndarray
    met: list[OpMet]
    known: Sequence[OpMet]
    count: int
    marks: list[tuple[str, int]]

    @property
    def nbytes(self) -> int:
        return _ROW_BYTES * len(self.ops) + 8 * WORDS * len(self.rows)


def slices_of(record: FreeRecord, tracks: Tracks) -> PacketTemplate:
    """Slices of ops, within those of what they ran in: from the first such op to the last."""
    from opstep.trace.packets import Packets

    out, track = Packets(), tracks.track(record.stream, "thread")
    opened: list[tuple[str, Any]] = []
    ids = {"run": tracks.run.key, "step": STEP}

    def leave(levels: Sequence[str], last: int) -> None:
        while opened and [name for name, _ in opened] != list(levels[: len(opened)]):
            out.at(opened.pop()[1], last)

    for row, op in enumerate(record.known[k] for k in record.ops.tolist()):
        leave(op.levels, 2 * row - 1)
        for name in op.levels[len(opened) :]:
            kind = "module" if opened else "phase"
            begin, end = tracks.interned.slice(track, name, kind, ids)
            out.at(begin, 2 * row)
            opened.append((name, end))
        about = {
            "op": op.op, "name": op.name, "site": op.site, "frame": op.frame, "file": op.file,
            "line": op.line, "statement": op.statement,
            "operands": ", ".join(f"{name}: {t}" if t else name for name, t in op.operands),
            "results": ", ".join(f"{r.name}: {r.dtype}{list(r.shape)}" for r in op.results),
            "bytes": op.nbytes,
        }  # fmt: skip
        out.add(tracks.interned.slice(track, op.name, "op", ids | about), row)
    leave([], 2 * len(record.ops) - 1)
    return out.template()
