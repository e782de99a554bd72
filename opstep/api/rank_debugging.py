"""A program of several ranks under the debugger: all of them in this process.

debugger = debug_ranks(opstep.load("step.opg", ranks=4), "main", {"x": x})
debugger.start()
debugger.go("over")
print(debugger.evaluate("w@2"), debugger.evaluate("replicated(w)"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.api.debugging import ProgramHost, redrawn
from opstep.api.devices import check_computes
from opstep.api.origins import locate
from opstep.api.program import Program
from opstep.api.ranks import Part, rank_mismatches
from opstep.api.settings import BUDGET, RunSettings
from opstep.runtime.debugger.ranks.lockstep import RankDebugger, lockstep
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType

if TYPE_CHECKING:
    from opstep.runtime.debugger.activation import Node
    from opstep.runtime.ir.diagnostics import Diagnostic

MOST = 256  # ranks of one process


class RankHost(ProgramHost):
    """What the debugger of one rank needs of a program: its named tensors are the rank's own."""

    def __init__(
        self, program: Program, graph: str, inputs: Mapping[str, Any], settings: RunSettings,
        rank: int, first: RankHost | None = None,
    ):  # fmt: skip
        """`first`: that of rank 0, which reads the file again for all."""
        super().__init__(program, graph, inputs, settings, enters=True)
        self._rank = rank
        self._first = first
        self._next: RankHost | None = None  # what `reload` gave
        self._own: dict[str, Any] = {}  # memory, by name

    def tensor(self, name: str) -> tuple[TensorType, Any]:
        t = self.program.verified.tensors[name].type
        if name not in self._own:
            memory = self._own[name] = self.device.alloc(t.nbytes, f"{name} of a rank")
            self.device.write(memory, 0, t, self.program.params.on_rank(name, self._rank))
        return t, self._own[name]

    def commit(self, tensors: Mapping[str, Node]) -> None:
        for name, node in tensors.items():
            _, memory = self.tensor(name)
            if node.address != memory.address:
                array = self.device.read(node.memory, node.offset, node.type)
                self.device.write(memory, 0, node.type, array)

    def begin_anew(self) -> None:
        self._own.clear()

    def reload(self) -> RankHost:
        first = self._first._next if self._first is not None else None
        program = super().reload().program if first is None else first.program
        found = RankHost(program, self._graph, self._inputs, self.settings, self._rank, first)
        for name, memory in self._own.items():
            declared, old = program.verified.tensors.get(name), self.tensors[name]
            if declared and declared.type == old.type and not redrawn(old, declared):
                found._own[name] = memory
        self._next = found
        return found


def debug_ranks(
    program: Program, graph: str | None = None,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None, *,
    stop_on_entry: bool = False, stop_at_end: bool = False, memory_budget: int = BUDGET,
    files: Path | None = None, **options: Any,
) -> RankDebugger:  # fmt: skip
    """The debugger of rank 0, whose `group` has all. `inputs`: of all ranks, or of each its own;
    `options`: as of `opstep.Debugger`, which has the others, too. Raises `OpstepError`.
    """
    from opstep.api.inputs import conform, inputs_for

    mesh = program.mesh
    check_number(mesh.ranks)
    chosen: dict[str, Any] = {"mode": "debug"} | options
    settings = RunSettings(**chosen)
    check_computes(settings.device, "looked at")
    if memory_budget < 0:
        raise InputError(f"the memory budget is {memory_budget} bytes; it cannot be negative")
    program.reseed_with(settings.seed)
    found = program.graph(graph)
    source = program.module.source
    each = inputs if isinstance(inputs, Sequence) else [inputs] * mesh.ranks
    if len(each) != mesh.ranks:
        raise InputError(f"inputs of {len(each)} ranks are given, and there are {mesh.ranks}")
    if files is None and source is not None and Path(source.path).is_file():
        files = Path(source.path).parent
    group = lockstep(mesh, settings.policy.streams)
    names = [b.name.text for b in found.inputs]
    known: dict[int, Any] = {}
    for rank, given in enumerate(each):
        if id(given) not in known:
            known[id(given)] = conform(found, inputs_for(program, found, given), source)
        arrays, types = known[id(given)]
        by_name = dict(zip(names, arrays, strict=True))
        first: Any = group.members[0].host if group.members else None
        plain = replace(settings, seed=None)
        host = RankHost(program, found.name.text, by_name, plain, rank, first)
        RankDebugger(
            group, rank, host, found.name.text, arrays, types, names, policy=settings.policy,
            steps=settings.steps, stop_on_entry=stop_on_entry, stop_at_end=stop_at_end,
            memory_budget=memory_budget // mesh.ranks, files=files, locate=locate,
        )  # fmt: skip
    return group.members[0]


def check_number(ranks: int) -> None:
    """Raises `InputError` for more ranks than are debugged."""
    if ranks > MOST:
        hint = "opstep plan --ranks checks any number without running them"
        raise InputError(f"{ranks:,} ranks are too many to debug: at most {MOST}", hint=hint)


def mismatches(debugger: RankDebugger) -> list[Diagnostic]:
    """What does not match between ranks that run this, as far as it is known beforehand."""
    parts: dict[Sequence[int], Part] = {}
    by_types: dict[tuple, list[int]] = {}
    for member in debugger.group.members:
        by_types.setdefault(member.machine.types, []).append(member.rank)
    for types, ranks in by_types.items():
        host: Any = debugger.host
        parts[tuple(ranks)] = Part(host.program, debugger.machine.graph, types)
    return rank_mismatches(parts)
