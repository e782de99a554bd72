"""The timelines that ranks have written, as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from opstep.distributed.agreement import told
from opstep.distributed.clocks import Reading, clock, read

if TYPE_CHECKING:
    from opstep.distributed.gloo import GlooTransport
    from opstep.runtime.device.ranks import Ranks
    from opstep.runtime.ir.mesh import Mesh
    from opstep.trace.sink import SinkReport

_PART = 1 << 24  # bytes that are sent at once


class RankTimelines:
    """Those of a run on all ranks. Ranks of one machine have one clock; others' are compared when
    this is made, and once more at the end. All ranks do it at the same time.
    """

    def __init__(self, transport: GlooTransport, one_machine: bool):
        self._world = transport.world
        self._first = None if one_machine else read(self._world)

    def join(self, trace: Path, reports: Sequence[SinkReport], mesh: Mesh) -> None:
        """Puts what all ranks have written into the file of rank 0, whose report says so; those of
        other ranks go. A file that cannot be written is told of in the report.
        """
        last = None if self._first is None else read(self._world)
        (report,) = (r for r in reports if r.path == trace)
        counts = told(self._world, [n for _, n in report.counts])
        if self._world.index:
            _send(self._world, report.path)
            report.path.unlink(missing_ok=True)
            return
        from opstep.trace.joining import join

        files = {0: report.path}
        for rank in range(1, self._world.size):
            files[rank] = report.path.with_name(f".{report.path.name}.rank{rank}")
        try:
            for rank in range(1, self._world.size):
                _receive(self._world, rank, files[rank])
            report.nbytes = join(report.path, files, mesh, clocks(self._first, last))
        except OSError as error:
            report.problem = f"the timelines of all ranks cannot be joined: {error.strerror}"
        finally:
            for rank in range(1, self._world.size):
                files[rank].unlink(missing_ok=True)
        names = [name for name, _ in report.counts]
        report.counts = [("rank", self._world.size)]
        report.counts += [
            (n, sum(c)) for n, c in zip(names, zip(*counts, strict=True), strict=True)
        ]


def clocks(
    first: Mapping[int, Reading] | None, last: Mapping[int, Reading] | None
) -> dict[int, Callable[[int], int]]:
    """What times of ranks are on the clock of rank 0; none of those that have the same."""
    if first is None or last is None:
        return {}
    return {rank: clock(first[rank], last[rank]) for rank in first}


def _send(ranks: Ranks, file: Path) -> None:
    size = file.stat().st_size if file.is_file() else 0
    ranks.send(np.array([size], np.int64), 0)
    if size:
        with file.open("rb") as data:
            while size > 0:
                part = np.frombuffer(data.read(min(size, _PART)), np.uint8)
                ranks.send(part, 0)
                size -= len(part)


def _receive(ranks: Ranks, rank: int, file: Path) -> None:
    left = int(ranks.recv(np.zeros(1, np.int64), rank)[0])
    with file.open("wb") as out:
        while left > 0:
            part = ranks.recv(np.zeros(min(left, _PART), np.uint8), rank)
            out.write(part.tobytes())
            left -= len(part)
