"""What the verifier finds out about a module, for those who run it, draw it or ask about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.graph import Declaration, Graph, Module, Source
from opstep.runtime.ir.mesh import Mesh
from opstep.runtime.ir.op import Op, Resolved
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import DType, TensorType

_NONE: Mapping[str, Any] = {}


class Application(NamedTuple):
    """What an apply comes to. Statements with the same callee, attributes and types share one.

    Either `op` is set or, for a call, `graph`. `attrs` are complete. `symbols` are the callee's, in
    the dims of the caller.
    """

    op: type[Op] | None
    graph: Graph | None
    resolved: Resolved
    attrs: Mapping[str, Any] = _NONE
    symbols: Mapping[str, Dim] = _NONE
    literals: tuple[tuple[int, DType], ...] = ()  # operands that are literals, and what they become
    needs: frozenset[str] = frozenset()  # symbols that the attributes use


@dataclass(slots=True)
class VerifiedGraph:
    """A graph with the type of every value in it.

    `types`: inputs, results of statements and the named tensors that it uses. `applications` has
    for each statement of the body its `Application`, or None where it is no apply. `symbols`: those
    that the inputs bind, in their order. `steps`: ops in it when the calls of graphs are inlined.
    """

    graph: Graph
    source: Source | None
    types: dict[str, TensorType]
    applications: list[Application | None]
    symbols: tuple[str, ...]
    steps: int = 0


@dataclass(slots=True)
class Verified:
    """A module and what is known about it.

    `graphs` are its own and those of the library that it reaches, by name. `inits` has the
    initialising op of each named tensor that has one. `mesh`: what its collectives are for.
    `tensors` are as a rank knows them: of those in `shards` it has a part.
    """

    module: Module
    tensors: dict[str, Declaration]
    graphs: dict[str, VerifiedGraph]
    inits: dict[str, Application]
    mesh: Mesh
    shards: dict[str, Shard] = field(default_factory=dict)
