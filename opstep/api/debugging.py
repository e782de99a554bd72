"""A program under the debugger, from Python.

debugger = opstep.Debugger(opstep.load("lenet.opg"), "main", {"images": images})
debugger.breakpoints.set_lines("lenet.opg", [Wanted(line=12)])
stop = debugger.start()
print(debugger.stack()[0].names(), debugger.evaluate("max(abs(c1))"))
debugger.go("back")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.api.devices import check_computes
from opstep.api.origins import locate
from opstep.api.program import Program
from opstep.api.settings import BUDGET, RunSettings
from opstep.runtime.debugger import debugger as core
from opstep.runtime.debugger.breakpoints import Texts
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Update
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Plan, Policy

if TYPE_CHECKING:
    from opstep.runtime.debugger.activation import Node


class ProgramHost:
    """A program, as a debugger needs it. `run` starts a run of it at full speed. `enters`: a step
    into a composite is one into its graph.
    """

    def __init__(
        self, program: Program, graph: str, inputs: Mapping[str, Any], settings: RunSettings,
        enters: bool = False,
    ):  # fmt: skip
        self.program = program
        self.name = settings.device
        self.settings = settings
        self.enters = enters
        self.device = program.on(self.name, settings.setup)
        self._graph = graph
        self._inputs = inputs
        self._before: dict[str, Any] = {}  # named tensors that changed, as the session found them

    @property
    def tensors(self) -> Mapping[str, Any]:
        return self.program.verified.tensors

    @property
    def shards(self) -> Mapping[str, Shard]:
        return self.program.verified.shards

    @property
    def changed_in_place(self) -> frozenset[tuple[str, int]] | None:
        return self.program.changed_in_place

    def plan_for(self, graph: str, types: tuple[TensorType, ...], policy: Policy) -> Plan:
        setup = self.settings.setup
        return self.program.plan_to_run(self.name, setup, graph, types, policy, steps=self.enters)

    def tensor(self, name: str) -> tuple[TensorType, Any]:
        """A named tensor as it is: its type and its memory on the device."""
        tensors = self.program.params
        tensors.prepare([name])
        tensors._copy(name, self.name)
        return self.tensors[name].type, self.program._store(self.name).memory(name)

    def commit(self, tensors: Mapping[str, Node]) -> None:
        """These are the program's named tensors from now on."""
        store = self.program._store(self.name)
        for name, node in tensors.items():
            memory = store.memory(name)
            if node.address == memory.address:
                continue
            self._remember(name)
            store.write(name, self.device.read(node.memory, node.offset, node.type))
            self.program.params.changed(name, self.name)

    def texts(self) -> list[Texts]:
        verified = self.program.verified
        found: dict[int, Texts] = {}
        for graph in verified.graphs.values():
            if graph.source is not None:
                texts = found.setdefault(id(graph.source), Texts(graph.source, []))
                texts.graphs.append(graph.graph)
        return list(found.values())

    def reload(self) -> ProgramHost:
        """The program of the file as it is now, with the values that named tensors have here.
        Raises `OpstepError`, with every error in it.
        """
        from opstep.api.program import load

        source = self.program.module.source
        if source is None:
            raise InputError("the program was not read from a file")
        if not Path(source.path).is_file():
            raise InputError(f"{source.path} is not there, or no file")
        old, mesh = self.program, self.program.mesh
        extents = dict(mesh.axes) if mesh.declared and mesh.ranks > 1 else None
        program = load(source.path, fallback=old.fallback, ranks=mesh.ranks, mesh=extents)
        program.seed = old.seed
        for name, declared in program.verified.tensors.items():
            old = self.tensors.get(name)
            if old is not None and old.type == declared.type and not redrawn(old, declared):
                program.params[name] = self.program.params[name]
        host = ProgramHost(program, self._graph, self._inputs, self.settings, self.enters)
        same = (n for n in self._before if n in host.tensors)
        same = (n for n in same if host.tensors[n].type == self.tensors[n].type)
        same = (n for n in same if not redrawn(self.tensors[n], host.tensors[n]))
        host._before = {n: self._before[n] for n in same}
        return host

    def begin_anew(self) -> None:
        for name, array in self._before.items():
            self.program.params[name] = array
        self._before.clear()

    def _remember(self, name: str) -> None:
        if name not in self._before:
            self._before[name] = self.program.params[name]

    def failed_assert(self, code: int) -> OpstepError:
        return self.program._asserts.error(code)

    def run_fast(
        self, steps: int, go_on: Callable[[], bool]
    ) -> tuple[int, Mapping | None, OpstepError | None]:
        for name in _updated(self.texts()):
            self._remember(name)
        done = 0

        def step_done() -> None:
            nonlocal done
            done += 1
            if done < steps and not go_on():
                raise _Enough

        settings = replace(self.settings, steps=steps)
        try:
            result = self.program.run(
                self._graph, self._inputs, on_step=step_done, **vars(settings)
            )
        except _Enough:
            return done, None, None
        except OpstepError as error:
            return done, None, error
        return done, result, None


class _Enough(BaseException):
    """Ends a run between two steps."""


def _updated(texts: list[Texts]) -> set[str]:
    """The named tensors that graphs update."""
    statements = (s for text in texts for graph in text.graphs for s in graph.body)
    return {s.target.text for s in statements if isinstance(s, Update)}


def redrawn(old: Any, new: Any) -> bool:
    """Whether a declaration begins otherwise than it did."""
    return (old.init, old.attrs, old.value) != (new.init, new.attrs, new.value)


class Debugger(core.Debugger):
    """A run of a program's graph under control; arguments as those of `Program.run`.

    `memory_budget`: bytes of results that are kept to go back to; others are computed again when
    they are looked at. `files`: the folder below which expressions may load arrays (by default
    that of the program). Raises `OpstepError`.
    """

    def __init__(
        self,
        program: Program,
        graph: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        *,
        device: str = "cpu",
        mode: str = "debug",
        streams: int | None = None,
        alloc: str | None = None,
        fill: str | None = None,
        sync: str | None = None,
        steps: int = 1,
        seed: int | None = None,
        threads: int | None = None,
        kernels: str = "auto",
        stop_on_entry: bool = False,
        stop_at_end: bool = False,
        memory_budget: int = BUDGET,
        files: Path | None = None,
    ):
        from opstep.api.inputs import conform, inputs_for

        check_computes(device, "looked at")
        if memory_budget < 0:
            raise InputError(f"the memory budget is {memory_budget} bytes; it cannot be negative")
        settings = RunSettings(
            device=device, mode=mode, streams=streams, alloc=alloc, fill=fill, sync=sync,
            steps=steps, threads=threads, kernels=kernels, seed=seed,
        )  # fmt: skip
        program.reseed_with(seed)
        found = program.graph(graph)
        arrays, types = conform(found, inputs_for(program, found, inputs), program.module.source)
        names = [b.name.text for b in found.inputs]
        inputs_by_name = dict(zip(names, arrays, strict=True))
        name = found.name.text
        host = ProgramHost(program, name, inputs_by_name, replace(settings, seed=None), True)
        source = program.module.source
        if files is None and source is not None and Path(source.path).is_file():
            files = Path(source.path).parent
        super().__init__(
            host, name, arrays, types, names, policy=settings.policy, steps=steps,
            stop_on_entry=stop_on_entry, stop_at_end=stop_at_end, memory_budget=memory_budget,
            files=files, locate=locate,
        )  # fmt: skip

    @property
    def program(self) -> Program:
        """As it is now: `reload` makes another."""
        host: Any = self.host
        return host.program


def debugged(settings: RunSettings) -> dict[str, Any]:
    """As arguments of `Debugger`, which delays no streams and goes by the times that are known."""
    return {k: v for k, v in vars(settings).items() if k not in ("autotune", "chaos")}
