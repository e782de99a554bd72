"""Whether the ranks of a run match: what each says to the others, before anything is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.runtime.ir.diagnostics import Diagnostic, OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import MODES, Plan
from opstep.runtime.plan.rank_matching import mismatches
from opstep.runtime.plan.rank_traces import Plans, Trace, parting, traces

if TYPE_CHECKING:
    from opstep.api.program import Program


class Part(NamedTuple):
    """What some ranks run: a graph of a program for inputs of these types, or for these symbols."""

    program: Program
    graph: str | None = None
    types: Sequence[TensorType] | None = None
    symbols: Mapping[str, Any] | None = None


def rank_traces(part: Part, ranks: Sequence[int]) -> dict[Trace, list[int]]:
    """What these ranks say to others when they run a part: each trace with those that have it."""
    program = part.program
    plan_of = _plans(program)
    found = program.graph(part.graph)
    types = part.types
    if types is None:
        types = program.input_types(found, part.symbols or {})
    return traces(plan_of(found.name.text, tuple(types)), plan_of, program.mesh, ranks,
                  program.verified.shards)  # fmt: skip


def check_alike(part: Part, axes: Sequence[str]) -> None:
    """Raises `OpstepError` where ranks along these axes would update a tensor differently."""
    program = part.program
    plan_of = _plans(program)
    plan = plan_of(program.graph(part.graph).name.text, tuple(part.types or ()))
    ranks = range(program.mesh.ranks)
    for axis in axes:
        for name, place in parting(
            plan, plan_of, program.mesh, ranks, axis, program.verified.shards
        ).items():
            raise OpstepError(
                f"each rank would have a {name} of its own: it is updated by what one rank has",
                span=place.span, source=place.source,
                hint="all_reduce its gradient, or what else it is made of, with reduction=\"mean\"",
            )  # fmt: skip


def _plans(program: Program) -> Plans:
    policy = MODES["debug"]

    def plan_of(graph: str, types: tuple[TensorType, ...]) -> Plan:
        return program.plan(graph, types, policy, "null")

    return plan_of


def rank_mismatches(
    parts: Mapping[Sequence[int], Part] | Part, checked: bool = False
) -> list[Diagnostic]:
    """What does not match between ranks that run these parts, each message with both lines; for one
    part, between all ranks of its mesh. `checked`: see `mismatches`.
    """
    if isinstance(parts, Part):
        parts = {range(parts.program.mesh.ranks): parts}
    meshes = {part.program.mesh: part for part in parts.values()}
    if len(meshes) > 1:
        shown = " and ".join(f"({mesh})" for mesh in meshes)
        raise InputError(f"the ranks have different meshes: {shown}")
    (mesh,) = meshes
    found: dict[Trace, list[int]] = {}
    for ranks, part in parts.items():
        for trace, some in rank_traces(part, ranks).items():
            found.setdefault(trace, []).extend(some)
    return mismatches(found, mesh, checked)
