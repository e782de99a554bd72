"""What ranks tell each other before and behind a run: that they run one program, what they got."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from opstep.api.program import Program
from opstep.api.ranks import Part, rank_mismatches, rank_traces
from opstep.distributed.gloo import CheckedRanks, GlooRanks
from opstep.runtime.ir.diagnostics import OpstepError, names_listed
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Source, Span
from opstep.runtime.ir.mesh import Group, Mesh
from opstep.runtime.ir.printer import print_module
from opstep.runtime.ir.shards import replicas
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.rank_matching import mismatches
from opstep.runtime.plan.rank_traces import Fork, Place, Talk, Trace
from opstep.version import __version__


def told(world: GlooRanks, own: Any) -> list[Any]:
    """What each rank tells all: values that JSON has."""
    data = np.frombuffer(json.dumps(own).encode(), np.uint8)
    sizes = [int(n[0]) for n in world.gather(np.array([data.size], np.int64))]
    return [json.loads(part.tobytes()) for part in world.gather(data, sizes)]


def parted(world: GlooRanks, program: Program) -> list[tuple[int, int, list[str]]]:
    """Ranks that have other params or states than rank 0, or another part of a shard than the first
    rank that has that part: each with that first rank and the names. All ranks call this.
    """
    values, shards, mesh = program.params, program.verified.shards, program.mesh
    own = {n: sha256(np.ascontiguousarray(values[n]).tobytes()).hexdigest() for n in values}
    every = told(world, own)
    same = {n: Group(mesh, replicas(shards, n, mesh.names)) for n in shards}
    found = []
    for rank, its in enumerate(every):
        first = {n: same[n].members(rank)[0] if n in shards else 0 for n in its}
        names = [name for name, digest in its.items() if digest != every[first[name]][name]]
        for other in dict.fromkeys(first[name] for name in names):
            found.append((rank, other, [name for name in names if first[name] == other]))
    return found


def agree_on_values(world: GlooRanks, program: Program, when: str = "begins") -> None:
    """Raises `InputError` where ranks have `parted`; `when`: what each does with these values."""
    for rank, first, names in parted(world, program):
        raise InputError(
            f"rank {rank} {when} with another {names_listed(names)} than rank {first}",
            hint="give all ranks the same params and seed" if when == "begins" else "",
        )


def agree(
    world: GlooRanks, program: Program, graph: str, types: Sequence[TensorType], how: str = ""
) -> None:
    """Raises `OpstepError` where ranks run different programs or values, or do not match. Each may
    have inputs of its own sizes. `how`: what else is to be the same. Where ranks compare what they
    are at, ways that they may take apart are no fault.
    """
    text = f"{__version__}\n{how}\n{program.mesh}\n{graph}\n{print_module(program.module)}"
    own = [sha256(text.encode()).hexdigest(), [str(t) for t in types]]
    every = told(world, own)
    for rank, (digest, _) in enumerate(every):
        if digest != every[0][0]:
            raise InputError(
                f"rank {rank} runs another program than rank 0, or another version of opstep",
                hint="give all ranks the same file and options",
            )
    agree_on_values(world, program)
    part = Part(program, graph, types)
    sources = {g.source.path: g.source for g in program.verified.graphs.values() if g.source}
    checked = isinstance(world, CheckedRanks)
    if checked:
        world.check.sources = sources
    if all(theirs == own[1] for _, theirs in every):
        faults = rank_mismatches(part, checked)
    else:
        (trace,) = rank_traces(part, [world.index])
        found: dict[Trace, list[int]] = {}
        for rank, its in enumerate(told(world, _plain(trace))):
            found.setdefault(_trace(its, program.mesh, sources), []).append(rank)
        faults = mismatches(found, program.mesh, checked)
    if faults:
        raise OpstepError(faults)


def _plain(trace: Trace) -> list[Any]:
    """A trace as JSON has it. All ranks have the same text, so a place is told by its offsets."""
    found: list[Any] = []
    for one in trace:
        place = [one.place.source.path if one.place.source else "", *one.place.span]
        if isinstance(one, Talk):
            found.append([one.op, one.group.axes, one.what, one.peer, *place])
        else:
            found.append([one.word, sorted(one.axes), [_plain(w) for w in one.ways], None, *place])
    return found


def _trace(plain: Sequence[Any], mesh: Mesh, sources: Mapping[str, Source]) -> Trace:
    found: list[Talk | Fork] = []
    for name, axes, what, peer, path, start, end in plain:
        place = Place(sources.get(path), Span(start, end))
        if peer is None:
            ways = tuple(_trace(way, mesh, sources) for way in what)
            found.append(Fork(name, frozenset(axes), ways, place))
        else:
            found.append(Talk(name, Group(mesh, tuple(axes)), what, place, peer))
    return tuple(found)
