"""``opstep hunt`` on several ranks: where it was born, and over what it came to others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from opstep.cli.common import FOUND, OK, emit_json
from opstep.cli.wording import in_switches

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


def show_of_all(file: str, found: Hunt, transport: GlooTransport, as_json: bool) -> int:
    """Rank 0 shows what all have found, those first where it was born; the exit code."""
    from opstep.distributed.agreement import told
    from opstep.hunting.records import record
    from opstep.hunting.report import headline, report
    from opstep.runtime.ir.diagnostics import visible

    of_others = [f for f in found.findings if f.over_ranks]
    own = {
        "found": found.found,
        "born": found.found and len(of_others) < len(found.findings) + len(found.unrepeated),
        "came": [headline(f, False) for f in of_others],
        "report": report(found, in_switches),
        "record": record(found),
    }
    every = dict(enumerate(told(transport.world, own)))
    code = FOUND if any(one["found"] for one in every.values()) else OK
    if transport.rank:
        return OK
    order = sorted(every, key=lambda rank: (not every[rank]["born"], rank))
    if as_json:
        records = [{"rank": rank} | every[rank]["record"] for rank in order]
        emit_json({"file": file, "found": code == FOUND, "ranks": records})
        return code
    if code == OK:
        click.echo(visible(every[0]["report"]))
        return code
    for rank in order:
        one = every[rank]
        if one["born"]:
            first, *lines = one["report"].split("\n")
            click.echo(visible(f"rank {rank}: {first}"))
            for line in lines:
                click.echo(visible(line))
        else:
            for line in one["came"] or ["nothing came out here"]:
                click.echo(visible(f"rank {rank}: {line}"))
    return code
