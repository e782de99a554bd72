"""``opstep hunt`` on several ranks: where it was born, and over what it came to others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opstep.cli.common import FOUND, OK, emit_json, in_switches, say_report

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.distributed.gloo import GlooTransport
    from opstep.hunting.report import Hunt


def together(
    transport: GlooTransport, program: Program, graph: str, values: Mapping[str, Any], device: str
) -> Callable[[bool], bool]:
    """Ranks compare what they run; gives what says whether something holds on any."""
    from opstep.api.inputs import conform
    from opstep.distributed.agreement import agree
    from opstep.distributed.gpus import meet

    world = transport.world
    _, types = conform(program.graph(graph), values, program.module.source)
    agree(world, program, graph, types)
    meet(program, graph, device)
    return lambda holds: any(one[0] for one in world.gather(np.array([holds])))


class OfRank(NamedTuple):
    """What one rank has found, as others are told. `born`: something was born there; `came`: what
    came from others, in words.
    """

    rank: int
    found: bool
    born: bool
    came: list[str]
    report: str
    record: dict[str, Any]

    @property
    def lines(self) -> list[str]:
        if not self.born:
            return [f"rank {self.rank}: {line}" for line in self.came or ["nothing came out here"]]
        first, *lines = self.report.split("\n")
        return [f"rank {self.rank}: {first}", *lines]


def found_by_all(found: Hunt, transport: GlooTransport) -> list[OfRank]:
    """Those first where something was born. All ranks call this."""
    from opstep.distributed.agreement import told
    from opstep.hunting.records import record
    from opstep.hunting.report import headline, report

    of_others = [f for f in found.findings if f.over_ranks]
    own = OfRank(
        transport.rank,
        found.found,
        found.found and len(of_others) < len(found.findings) + len(found.unrepeated),
        [headline(f, False) for f in of_others],
        report(found, in_switches),
        record(found),
    )
    every = [OfRank(*one) for one in told(transport.world, own)]
    return sorted(every, key=lambda one: (not one.born, one.rank))


def show_of_all(file: str, found: Hunt, transport: GlooTransport, as_json: bool) -> int:
    """Rank 0 shows what all have found; the exit code."""
    every = found_by_all(found, transport)
    if transport.rank:
        return OK
    code = FOUND if any(one.found for one in every) else OK
    if as_json:
        records = [{"rank": one.rank} | one.record for one in every]
        emit_json({"file": file, "found": code == FOUND, "ranks": records})
        return code
    lines = [line for one in every for line in one.lines] if code else [every[0].report]
    say_report("\n".join(lines))
    return code
