"""The Python API: load a program, run its graphs, look at its tensors.

program = opstep.load("lenet.opg")
result = program.run("classify", {"x": images})
result["label"]
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from opstep.runtime.ir.diagnostics import OpstepError, did_you_mean
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Declaration, Graph, Module, Return
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import MODES, Plan, Policy

if TYPE_CHECKING:
    import numpy as np

    from opstep.runtime.device.binding import Binding, Listener
    from opstep.runtime.device.store import Store
    from opstep.runtime.interpreter import Context
    from opstep.runtime.written import Unwritten

DEVICES = ("cpu", "null")


def load(path: str | Path) -> Program:
    """Reads, parses and verifies a file. Raises `OpstepError` with every error in it."""
    from opstep.runtime.ir.parser import load as load_module

    return Program(load_module(path))


def loads(text: str, path: str = "<text>") -> Program:
    """`load` for a text; `path` stands in its messages."""
    from opstep.runtime.ir.parser import parse

    return Program(parse(text, path))


def policy(
    mode: str = "async",
    streams: int | None = None,
    alloc: str | None = None,
    fill: str | None = None,
    sync: str | None = None,
) -> Policy:
    """The four switches: the preset of a mode ("async" or "debug"), with those given replaced."""
    choices = {"mode": (mode, MODES), "alloc": (alloc, ("reuse", "fresh"))}
    choices |= {"fill": (fill, ("none", "nan")), "sync": (sync, ("none", "op"))}
    for name, (given, known) in choices.items():
        if given is not None and given not in known:
            raise InputError(f"{name} is {given!r}; it can be {' or '.join(known)}")
    if streams is not None and not 1 <= streams <= 64:
        raise InputError(f"streams is {streams}; it can be 1 to 64")
    given = {"streams": streams, "alloc": alloc, "fill": fill, "sync": sync}
    return replace(MODES[mode], **{k: v for k, v in given.items() if v is not None})


class Program:
    """A verified module with its named tensors. Runs from several threads or tasks share the
    tensors.
    """

    def __init__(self, module: Module):
        import opstep.kernels  # noqa: F401 - registers the ops
        from opstep.kernels.stdlib import library
        from opstep.runtime.ir.verify import verify
        from opstep.runtime.plan.internal import Asserts

        self.module = module
        self.library = library()
        self.verified = verify(module, library=self.library)
        self.seed = 0
        self.params = Tensors(self)
        self._asserts = Asserts()
        self._plans: dict[tuple, Plan] = {}
        self._devices: dict[tuple, Any] = {}
        self._stores: dict[str, Store] = {}
        self._idle: dict[tuple, list[Context]] = {}

    @property
    def graphs(self) -> dict[str, Graph]:
        return self.module.graphs

    def __getitem__(self, graph: str) -> GraphView:
        """One graph, for a look at it (in a notebook, too)."""
        return GraphView(self, self.graph(graph))

    def __repr__(self) -> str:
        where = self.module.source.path if self.module.source else "<text>"
        return f"<Program {where}: graphs {', '.join(self.graphs) or 'none'}>"

    def graph(self, name: str | None = None) -> Graph:
        """The graph of that name; without one the only graph, or `main`. Raises `InputError`."""
        if name is None:
            if len(self.graphs) == 1:
                return next(iter(self.graphs.values()))
            if "main" not in self.graphs:
                known = ", ".join(self.graphs) or "none"
                raise InputError("which graph?", hint=f"name one of: {known}")
            name = "main"
        if name not in self.graphs:
            hint = did_you_mean(name, self.graphs) or f"there are: {', '.join(self.graphs)}"
            raise InputError(f"there is no graph {name}", hint=hint)
        return self.graphs[name]

    def with_grad(self, graph: str, wrt: Sequence[str], name: str | None = None) -> Program:
        """This program with one graph more, ``<graph>_grad``, which also gives the derivatives by
        `wrt`.

        See `runtime.transforms.grad.grad`. The named tensors keep their values.
        """
        from opstep.runtime.transforms.grad import GradientError, grad

        try:
            made = grad(self.module, graph, wrt, name=name, library=self.library)
        except GradientError as error:
            span = error.statement.span if error.statement else None
            raise OpstepError(str(error), span=span, source=self.module.source) from None
        module = Module((*self.module.items, made), self.module.closing, self.module.source)
        program = Program(module)
        for key, value in self.params.items():
            program.params[key] = value
        return program

    # --- plans ---

    def plan(
        self,
        graph: str | None = None,
        types: Sequence[TensorType] | None = None,
        policy: Policy = MODES["async"],
        device: str = "cpu",
        *,
        symbols: Mapping[str, int] | None = None,
        lanes: int | None = None,
    ) -> Plan:
        """The plan of a graph for inputs of these concrete types, or for sizes of its symbols."""
        found = self.graph(graph)
        if types is None:
            types = self.input_types(found, symbols or {})
        return self._plan(device, lanes, found.name.text, tuple(types), policy)

    def input_types(self, graph: Graph, symbols: Mapping[str, int]) -> tuple[TensorType, ...]:
        """The graph's input types with its symbols replaced; raises where one is not given."""
        types = []
        for binding in graph.inputs:
            assert binding.type is not None
            bound = binding.type.bind(dict(symbols))
            if not bound.is_concrete:
                free = sorted({s for d in bound.shape if isinstance(d, Expr) for s in d.symbols()})
                raise InputError(
                    f"input {binding.name.text}: {binding.type} needs a size for {', '.join(free)}",
                    hint="give it with --symbol " + " --symbol ".join(f"{s}=32" for s in free),
                )
            types.append(bound)
        return tuple(types)

    def _plan(self, device: str, lanes: int | None, graph: str, types, policy: Policy) -> Plan:
        from opstep.runtime.plan.planner import make_plan

        key = (device, lanes, graph, types, policy)
        if key not in self._plans:
            self._plans[key] = make_plan(
                self.verified,
                graph,
                types,
                policy,
                prepare=self._device(device, lanes).prepare,
                library=self.library,
                asserts=self._asserts,
            )
        return self._plans[key]

    # --- running ---

    def run(
        self,
        graph: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        *,
        device: str = "cpu",
        mode: str = "async",
        streams: int | None = None,
        alloc: str | None = None,
        fill: str | None = None,
        sync: str | None = None,
        steps: int = 1,
        seed: int | None = None,
        threads: int | None = None,
        listeners: Sequence[Listener] = (),
    ) -> Result:
        """Runs a graph `steps` times on the same inputs and gives the last outputs.

        `inputs`: arrays by name (NumPy, or anything with ``__array__`` or ``__dlpack__``), or
        numbers and lists. `seed` draws the params that initialisers make; `threads` share a
        kernel's range (all cores by default). Raises `OpstepError`: a failed assert, a loop past
        its limit, inputs that do not fit.
        """
        from opstep.runtime.interpreter import drive

        chosen = policy(mode, streams, alloc, fill, sync)
        with self._running(graph, inputs, device, chosen, steps, seed, threads, listeners) as job:
            for _ in range(steps):
                drive(job.context.run(job.binding))
                job.step_done()
            return job.result()

    async def run_async(self, graph: str | None = None, inputs=None, **options: Any) -> Result:
        """`run` for an event loop: other tasks, and other runs, go on while the device works."""
        from opstep.runtime.interpreter import drive_async

        switches = {k: options.pop(k, None) for k in ("streams", "alloc", "fill", "sync")}
        chosen = policy(options.pop("mode", "async"), **switches)
        rest = {"device": "cpu", "steps": 1, "seed": None, "threads": None, "listeners": ()}
        if unknown := options.keys() - rest:
            raise TypeError(f"run_async() got an unexpected argument {sorted(unknown)[0]!r}")
        rest |= options
        steps = rest["steps"]
        with self._running(graph, inputs, rest["device"], chosen, steps, rest["seed"],
                           rest["threads"], rest["listeners"]) as job:  # fmt: skip
            for _ in range(steps):
                await drive_async(job.context.run(job.binding))
                job.step_done()
            return job.result()

    @contextmanager
    def _running(
        self, graph, inputs, device, chosen: Policy, steps, seed, threads, listeners
    ) -> Iterator[_Job]:
        """A context with the graph bound and its inputs in place; given back, or cleaned up."""
        from opstep.inputs import conform
        from opstep.runtime.written import WrittenCheck

        if steps < 1:
            raise InputError(f"steps is {steps}; at least 1 is needed")
        if seed is not None and seed != self.seed:
            self.reseed(seed)
        found = self.graph(graph)
        arrays, types = conform(found, inputs or {}, self.module.source)
        check = None
        if chosen.fill == "nan" and chosen.sync == "op" and device != "null":
            check = WrittenCheck()
            listeners = (*listeners, check)
        key = (device, threads, chosen)
        context = self._context(key, tuple(listeners))
        try:
            binding = context.bind(found.name.text, types)
            for value, array in zip(binding.plan.inputs, arrays, strict=True):
                binding.array(value)[...] = array
            yield _Job(self, found, context, binding, check)
        except BaseException:
            context.abandon()
            raise
        if not listeners:
            self._idle.setdefault(key, []).append(context)

    def _context(self, key: tuple, listeners: tuple) -> Context:
        """An idle context for these settings, or a new one."""
        from opstep.runtime.interpreter import Context

        idle = self._idle.get(key)
        if idle and not listeners:
            return idle.pop()
        device, threads, chosen = key

        def plan_for(graph: str, types: tuple[TensorType, ...], policy: Policy) -> Plan:
            plan = self._plan(device, threads, graph, types, policy)
            if device != "null":
                self.params.prepare(b.name for b in plan.buffers if b.kind == "param")
            return plan

        store = self._store(device)
        return Context(self._device(device, threads), store, plan_for, chosen, listeners)

    def _device(self, name: str, lanes: int | None) -> Any:
        if name not in DEVICES:
            raise InputError(f"there is no device {name}", hint=f"there are: {', '.join(DEVICES)}")
        key = (name, lanes)
        if key not in self._devices:
            if name == "null":
                from opstep.runtime.device.null import NullDevice

                self._devices[key] = NullDevice()
            else:
                from opstep.runtime.device.cpu import CpuDevice

                self._devices[key] = CpuDevice(lanes)
        return self._devices[key]

    def _store(self, device: str) -> Store:
        from opstep.runtime.device.store import Store

        if device not in self._stores:
            types = {name: d.type for name, d in self.module.tensors.items()}
            self._stores[device] = Store(self._device(device, None), types)
        return self._stores[device]

    def reseed(self, seed: int) -> None:
        """Draws the params anew with this seed when they are next needed; values that were set
        stay.
        """
        self.seed = seed
        self.params.forget_drawn()


class _Job:
    """One run under way."""

    def __init__(self, program: Program, graph: Graph, context, binding: Binding, check):
        self.program = program
        self.graph = graph
        self.context = context
        self.binding = binding
        self.check = check
        self.began = perf_counter()
        self.seconds = 0.0

    def step_done(self) -> None:
        """After each step: raises where an assert failed, and takes the outputs out of device
        memory.
        """
        code = self.context.failed_assert() if self.context.device.name != "null" else 0
        if code:
            site = self.program._asserts.site(code)
            message = f"assert failed: {site.statement.message}"
            raise OpstepError(message, span=site.statement.condition.span, source=site.source)
        self.seconds = perf_counter() - self.began

    def result(self) -> Result:
        plan = self.binding.plan
        arrays = [self.binding.array(v).copy() for v in plan.outputs]
        returned = [s for s in self.graph.body if isinstance(s, Return)]
        names = [v.text for v in returned[0].values] if returned else []
        unwritten = self.check.found if self.check else []
        return Result(names, arrays, plan, self.seconds, unwritten)


class Result(Mapping):
    """The outputs of a run: by position in `outputs`, and as a mapping by the names returned."""

    def __init__(self, names, outputs, plan: Plan, seconds: float, unwritten: list[Unwritten]):
        self.names: list[str] = names
        self.outputs: list[np.ndarray] = outputs
        self.plan = plan
        self.seconds = seconds  # of all steps, inputs in place, outputs not yet copied
        self.unwritten = unwritten  # elements that an op never wrote (debug runs look for them)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.outputs[self.names.index(name)] if name in self.names else self._missing(name)

    def _missing(self, name: str):
        raise KeyError(f"no output {name}; there are: {', '.join(self.names)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        from opstep.runtime.ir.types import dtype_of

        shown = (
            f"{n}: {TensorType(dtype_of(a.dtype), a.shape)}"
            for n, a in zip(self.names, self.outputs, strict=True)
        )
        return f"<Result {', '.join(shown)}>"


class Tensors(MutableMapping):
    """The params and states of a program by name, as arrays. Reading gives a copy; writing sets the
    value.
    """

    def __init__(self, program: Program):
        self._program = program
        self._declared: dict[str, Declaration] = program.module.tensors
        self._set: dict[str, str] = {}  # name -> "drawn" by its initialiser, or "given"

    def __getitem__(self, name: str) -> np.ndarray:
        self._declaration(name)
        self.prepare([name])
        return self._program._store("cpu").read(name)

    def __setitem__(self, name: str, value: Any) -> None:
        from opstep.inputs import conform_one

        declared = self._declaration(name)
        array = conform_one(f"{declared.kind} {name}", declared.type, value)
        self._program._store("cpu").write(name, array)
        self._set[name] = "given"

    def __delitem__(self, name: str) -> None:
        """Back to what the initialiser gives."""
        self._declaration(name)
        self._set.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    def _declaration(self, name: str) -> Declaration:
        if name not in self._declared:
            hint = did_you_mean(name, self._declared)
            raise InputError(f"there is no param or state {name}", hint=hint)
        return self._declared[name]

    def prepare(self, names) -> None:
        """Sees to it that these have values, drawn by their initialisers where none was given."""
        for name in names:
            if name not in self._set:
                array = _initial(self._declared[name], self._program)
                self._program._store("cpu").write(name, array)
                self._set[name] = "drawn"

    def forget_drawn(self) -> None:
        self._set = {name: how for name, how in self._set.items() if how == "given"}


def _initial(declared: Declaration, program: Program) -> np.ndarray:
    """What a declaration says its tensor begins as."""
    import numpy as np

    from opstep.runtime.device.cpu import execute

    name, t = declared.name.text, declared.type
    if declared.value is not None:
        return np.full(t.shape, declared.value.value, t.dtype.numpy)  # pyright: ignore
    if declared.init is None:
        raise InputError(
            f"{declared.kind} {name}: {t} has no value",
            span=declared.name.span,
            source=program.module.source,
            hint="load it (--params FILE.safetensors), or give it an initialiser such as = zeros()",
        )
    found = program.verified.inits[name]
    attrs = dict(found.attrs)
    if "seed" in attrs and not any(a.name.text == "seed" for a in declared.attrs):
        attrs["seed"] = _seed(name, program.seed)
    assert found.op is not None  # the verifier lets only ops initialise
    return execute(found.op, [], attrs)[0]


def _seed(name: str, seed: int) -> int:
    """A seed of its own for each tensor, the same in every run."""
    return (zlib.crc32(name.encode()) + seed * 0x9E3779B1) & 0x7FFF_FFFF


class GraphView:
    """A graph as text, and as HTML in a notebook: each line with the types of what it computes."""

    def __init__(self, program: Program, graph: Graph):
        self.program = program
        self.graph = graph

    def __repr__(self) -> str:
        from opstep.runtime.ir.printer import print_graph

        return print_graph(self.graph)

    def _repr_html_(self) -> str:
        from opstep.html import graph_html

        types = self.program.verified.graphs[self.graph.name.text].types
        return graph_html({name: str(t) for name, t in types.items()}, self.graph, repr(self))
