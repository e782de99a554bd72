"""The Python API: load a program, run its graphs, look at its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.api.devices import (
    PLAIN,
    Setup,
    canonical,
    device_named,
    entered_on,
    fusing_for,
    kind_of,
)
from opstep.api.files import Files, check_fallback, importer_of, mesh_for, parsed, save, verified_on
from opstep.api.job import Job, Result, recorder_of
from opstep.api.settings import RunSettings
from opstep.api.tensors import Tensors
from opstep.api.view import GraphView
from opstep.runtime.interrupts import AT_ONCE, NEVER, Held
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.runtime.ir.graph import Graph, Module
from opstep.runtime.ir.mesh import Mesh
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.plan.plan import MODES, Fuse, Plan, Policy

if TYPE_CHECKING:
    from opstep.api.places import Places
    from opstep.optim.optimizers import Optimizer
    from opstep.runtime.device.flagging import Which
    from opstep.runtime.device.listening import Listener
    from opstep.runtime.device.protocols import Device, Recording
    from opstep.runtime.device.store import Store
    from opstep.runtime.interpreter import Context

# Set while a debugger can attach to this process: it takes a run over, or leaves it (None).
# Called with the program, graph, inputs and settings.
interposed: Callable[[Program, str | None, Any, RunSettings], Result | None] | None = None


def load(
    path: str | Path, *, fallback: str | None = None, ranks: int | None = None,
    mesh: Mapping[str, int] | None = None,
) -> Program:  # fmt: skip
    """Reads, parses and verifies a file, or imports a ``.pt2`` or an ``.onnx``. Raises
    `OpstepError` with every error in it. ``NAME.safetensors`` beside it has the values that no
    initialiser gives.

    `fallback`: "torch" lets PyTorch run the ops that are its own (``torch.aten.linalg_inv``); of a
    ``.pt2`` these are the ones without a counterpart, which is an error otherwise.

    `ranks`: of how many processes this is one; alone, every axis of the mesh has one rank. `mesh`:
    extents in place of those that the text declares (``{}``: none, it is as declared).
    """
    from opstep.runtime.ir.reading import read_source

    check_fallback(fallback)
    importer = importer_of(path)
    if importer is not None:
        return importer(path, fallback)
    module = parsed(read_source(path), str(path))
    program = Program(module, fallback, mesh_for(module.mesh, mesh, ranks))
    program.files = Files(path)
    return program


def loads(
    text: str, path: str = "<text>", *, fallback: str | None = None, ranks: int | None = None,
    mesh: Mapping[str, int] | None = None,
) -> Program:  # fmt: skip
    """`load` for a text; `path` stands in its messages."""
    check_fallback(fallback)
    module = parsed(text, path)
    return Program(module, fallback, mesh_for(module.mesh, mesh, ranks))


class Program:
    """A verified module with its named tensors. Runs from several threads or tasks share the
    tensors. `fallback`: the library that may run those ops that are its own, see `load`. `mesh`:
    that of the ranks that run it. `changed_in_place`: lines that changed tensors, if that is known.
    """

    def __init__(self, module: Module, fallback: str | None = None, mesh: Mesh | None = None):
        import opstep.kernels  # noqa: F401 - registers the ops
        from opstep.kernels.stdlib import library
        from opstep.runtime.plan.internal import Asserts

        self.module = module
        self.fallback = fallback
        self.library = library()
        self.mesh = mesh or mesh_for(module.mesh, None, None)
        self.verified = verified_on(self.mesh, module, self.library)
        self.seed, self.files = 0, Files()
        self.changed_in_place: frozenset[tuple[str, int]] | None = None
        self.params = Tensors(self)
        self._asserts = Asserts()
        self._plans: dict[tuple, Plan] = {}
        self._devices: dict[tuple, Any] = {}
        self._stores: dict[str, Store] = {}
        self._idle: dict[tuple, list[Context]] = {}

    @property
    def graphs(self) -> dict[str, Graph]:
        return self.module.graphs

    @property
    def example(self) -> Mapping[str, Any]:
        """Inputs that are known to fit, by name: those that a model was imported with, or that were
        saved with the program. Empty where there are none.
        """
        return self.files.inputs

    @example.setter
    def example(self, inputs: Mapping[str, Any]) -> None:
        self.files.inputs = inputs

    def save(self, path: str | Path) -> list[Path]:
        """Writes ``model.opg``, with the values that no initialiser gives (``model.safetensors``)
        and the example inputs (``model.example.safetensors``); gives the paths.
        """
        return save(self, path)

    def __getitem__(self, graph: str) -> GraphView:
        """One graph, for a look at it (in a notebook, too)."""
        found = self.graph(graph)
        return GraphView(found, self.verified.graphs[found.name.text])

    def __repr__(self) -> str:
        where = self.module.source.path if self.module.source else "<text>"
        return f"<Program {where}: graphs {', '.join(self.graphs) or 'none'}>"

    def graph(self, name: str | None = None) -> Graph:
        """The graph of that name; without one the only graph, or `main`. Raises `InputError`."""
        if name is None:
            if len(self.graphs) == 1:
                return next(iter(self.graphs.values()))
            if "main" not in self.graphs:
                names = ", ".join(self.graphs) or "none"
                raise InputError("which graph?", hint=f"name one of: {names}")
            name = "main"
        if name not in self.graphs:
            raise UnknownName(f"there is no graph {name}", name, self.graphs)
        return self.graphs[name]

    def with_grad(
        self, graph: str, wrt: Sequence[str], name: str | None = None, *,
        freeze: Sequence[str] = (), memory: str | int | None = None,
        symbols: Mapping[str, int | DType] | None = None,
    ) -> Program:  # fmt: skip
        """This program with one graph more, ``<graph>_grad`` or `name`: it takes what `graph` takes
        and returns what that returns, then the derivative of its first result by each of `wrt`.

        `wrt`: names of inputs and named tensors, all floats, or patterns such as ``conv*``, of the
        params that the result depends on. What `freeze` names or matches is left out. The first
        result must be a float scalar. `assert`s and updates are kept. If `graph` has control flow
        there are further graphs, which compute its derivatives.
        The new program has tensors of its own, with the values that they have here. `memory`: what
        a run of the new graph takes at most, such as "4GiB", for these sizes of `symbols`. Raises
        `InputError`, or `OpstepError` at the statement that no derivative is taken through.
        """
        from opstep.api.gradients import with_gradient
        from opstep.api.training import grown

        name = name or f"{graph}_grad"
        module = with_gradient(self, self.graph(graph), wrt, name, freeze)
        return grown(self, module, name, name, memory, symbols)

    def with_optimizer(
        self, graph: str, optimizer: str | Optimizer = "adamw",
        wrt: Sequence[str] | None = None, *, name: str | None = None,
        memory: str | int | None = None, symbols: Mapping[str, int | DType] | None = None,
        **options: Any,
    ) -> Program:  # fmt: skip
        """This program with a graph more, ``<graph>_step`` or `name`, and what it calls and keeps:
        it is `graph`, and also updates params by the gradient of its first result.

        `optimizer`: of `opstep.optim`, or its name, with hyperparameters among `options`, of which
        docs/training.md has the others. `wrt`: names and patterns of params; without it, all floats
        that `graph` depends on. `memory`, `symbols`, and what is raised: as `with_grad` has it.
        """
        from opstep.api.training import with_training_step

        name = name or f"{graph}_step"
        return with_training_step(self, graph, optimizer, wrt, name, options, memory, symbols)

    # --- plans ---

    def plan(
        self, graph: str | None = None, types: Sequence[TensorType] | None = None,
        policy: Policy = MODES["async"], device: str = "cpu", *,
        symbols: Mapping[str, int | str | DType] | None = None, setup: Setup = PLAIN,
        fuse: Fuse = Fuse.NOTHING,
    ) -> Plan:  # fmt: skip
        """The plan of a graph for inputs of these concrete types, or for sizes of its symbols.

        `fuse`: which ops may run as one; all that a device can join, where nobody looks.
        """
        found = self.graph(graph)
        if types is None:
            types = self.input_types(found, symbols or {})
        return self._plan(device, setup, found.name.text, tuple(types), policy, fuse=fuse)

    def plans(
        self, graph: str | None = None, types: Sequence[TensorType] | None = None,
        policy: Policy = MODES["async"], device: str = "cpu", *,
        symbols: Mapping[str, int | str | DType] | None = None, setup: Setup = PLAIN,
        most: int = 100, fuse: Fuse = Fuse.NOTHING,
    ) -> list[Plan]:  # fmt: skip
        """`plan`, and behind it those of the graphs that control flow in it calls, each once.

        A graph that calls itself with ever other shapes has no end of plans: `most` are made.
        """
        from opstep.runtime.ir.effects import called_graphs
        from opstep.runtime.plan.control import passed_types

        found = [self.plan(graph, types, policy, device, symbols=symbols, setup=setup, fuse=fuse)]
        signatures: set[tuple] = set()
        for plan in found:
            signatures.add(plan.signature)
            for step in (s for s in plan.steps if s.op.traits.host):
                passed = passed_types(step)
                for name in called_graphs(step.attrs):
                    if (name, passed) not in signatures and len(found) < most:
                        signatures.add((name, passed))
                        found.append(self._plan(device, setup, name, passed, policy, fuse=fuse))
        return found

    def input_types(self, graph: Graph, symbols: Mapping[str, Any]) -> tuple[TensorType, ...]:
        """The graph's input types with its symbols replaced; raises where one is not given."""
        from opstep.api.inputs import input_types

        return input_types(graph, symbols)

    def _plan(
        self, device: str, setup: Setup, graph: str, types, policy: Policy, carried: bool = False,
        fuse: Fuse = Fuse.NOTHING, steps: bool = False,
    ) -> Plan:  # fmt: skip
        from opstep.runtime.plan.planner import make_plan
        from opstep.runtime.recording import spending

        device = canonical(device)
        setup = setup._replace(chaos=None)  # delays change nothing of a plan
        key = (device, setup.on(device), graph, types, policy, carried, fuse, steps)
        if key not in self._plans:
            on = self._device(device, setup)
            with spending("plan", graph):
                self._plans[key] = make_plan(
                    self.verified, graph, types, policy,
                    prepare=on.prepare,
                    library=self.library,
                    asserts=self._asserts, carried=carried,
                    fuse=fuse, pace=on.pace, fills=on.fills, takes=on.takes,
                    enters=entered_on(device, steps),
                )  # fmt: skip
        return self._plans[key]

    def plan_to_run(
        self, device: str, setup: Setup, graph: str, types: tuple[TensorType, ...],
        policy: Policy, carried: bool = False, fuse: Fuse = Fuse.NOTHING, steps: bool = False,
    ) -> Plan:  # fmt: skip
        """A plan that a run is at hand of; `carried` and `fuse` as for `make_plan`, `steps` as for
        `entered_on`. Raises `InputError` at ops that it may not run.
        """
        plan = self._plan(device, setup, graph, types, policy, carried, fuse, steps)
        if plan.foreign and kind_of(device).computes:
            from opstep.runtime.device.foreign import check_foreign

            check_foreign(plan, self.fallback, kind_of(device).gpu)
        return plan

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
        kernels: str = "auto",
        autotune: bool = False,
        chaos: int | None = None,
        plan: Plan | None = None,
        listeners: Sequence[Listener] = (),
        recording: Recording | None = None,
        on_step: Callable[[], Any] | None = None,
    ) -> Result:
        """Runs a graph `steps` times on the same inputs and gives the last outputs.

        `inputs`: arrays by name (NumPy, or anything with ``__array__`` or ``__dlpack__``), or
        numbers and lists; without them, those of `example`. `seed` draws the params that
        initialisers make; `threads` share a kernel's range. On a GPU `kernels` says whose run
        ("numba": ours, "vendor": those of NVIDIA's libraries, "auto": the fastest known), and
        `autotune` tries ops that were never timed (docs/tuning.md). `chaos`: a seed for random
        delays of the streams, which bring races out (docs/diff.md). `plan`: of `Program.plan`,
        changed; it has its own policy. `recording`: where times and statistics of the ops go.
        `on_step` is called after each step. Raises
        `OpstepError`: a failed assert, a loop past its limit, inputs or a plan that do not fit.

        However a run ends (an error, Ctrl-C, an exception in `on_step`), params and states are
        those of the last finished step, for which `on_step` was called. A Ctrl-C that comes while
        `on_step` runs is raised when it returns, a second one at once.
        """
        from opstep.runtime.driving import drive

        settings = RunSettings(
            device=device, mode=mode, streams=streams, alloc=alloc, fill=fill, sync=sync,
            steps=steps, seed=seed, threads=threads, kernels=kernels, autotune=autotune,
            chaos=chaos,
        )  # fmt: skip
        special = listeners or recording or on_step or plan or chaos is not None
        if interposed and not special:
            debugged = interposed(self, graph, inputs, settings)
            if debugged is not None:
                return debugged
        with (
            Held(AT_ONCE) as signals,
            self._running(graph, inputs, settings, listeners, recording, plan=plan) as job,
        ):
            context, binding = job.context, job.binding
            for _ in range(steps):
                drive(context.compute(binding), signals.let_go)
                job.agree(signals)
                signals.when = NEVER  # what is committed is told
                drive(context.commit(binding))
                job.step_done()
                job.notify(on_step, signals)
                signals.let_go()
            return job.result()

    async def run_async(
        self, graph: str | None = None, inputs=None, *, listeners: Sequence[Listener] = (),
        recording: Recording | None = None, on_step: Callable[[], Any] | None = None,
        **options: Any,
    ) -> Result:  # fmt: skip
        """`run` for an event loop: other tasks, and other runs, go on while the device works.
        Where the task is cancelled, params and states are those of the last finished step, too.
        """
        from opstep.runtime.driving import drive_async, drive_through

        settings = RunSettings(**options)
        with self._running(graph, inputs, settings, listeners, recording) as job:
            for _ in range(settings.steps):
                await drive_async(job.context.compute(job.binding))
                with Held() as signals:
                    job.agree(signals)
                stopped = await drive_through(job.context.commit(job.binding))
                with Held() as signals:  # what is committed is told
                    job.step_done()
                    job.notify(on_step, signals)
                if stopped is not None:
                    raise stopped
            return job.result()

    @contextmanager
    def _running(
        self, graph, inputs, settings: RunSettings, listeners=(), recording=None,
        flagged: Which | None = None, plan: Plan | None = None, places: Places | None = None,
    ) -> Iterator[Job]:  # fmt: skip
        """A context with the graph bound and its inputs in place; given back, or cleaned up.

        `flagged`: which results raise flags of NaNs and infinities. `places`: inputs and results
        are there; the inputs are looked at only for a recording.
        """
        from opstep.api.inputs import conform, inputs_for
        from opstep.runtime.plan.runnable import runnable
        from opstep.runtime.uninitialised import UninitialisedCheck

        device, chosen = settings.device, settings.policy
        setup = settings.setup.on(device)
        self.reseed_with(settings.seed)
        found = self.graph(graph)
        if places is None or recording is not None:
            given = inputs_for(self, found, inputs)
            arrays, types = conform(found, given, self.module.source)
        else:
            arrays, types = [], places.types
        if plan is not None:
            chosen = runnable(plan, found.name.text, types).policy
        check, watched = None, bool(listeners)
        if chosen.fill == "nan" and chosen.sync == "op" and kind_of(device).computes:
            check = UninitialisedCheck()
            listeners = (*listeners, check)
        recorder = None
        if recording is not None:
            names = (b.name.text for b in found.inputs)
            inputs_by_name = dict(zip(names, arrays, strict=True))
            recorder = recorder_of(self, recording, found, inputs_by_name, chosen, settings)
        key = (device, setup, chosen, recording, flagged, None if plan is None else id(plan))
        context, binding, error = None, None, None
        try:
            context = self._context(key, tuple(listeners), recorder, plan)
            context.keeps_memory = watched
            if places is not None:
                binding = places.bind(context)
            else:
                binding = context.bind(found.name.text, types)
                for value, array in zip(binding.plan.inputs, arrays, strict=True):
                    binding.set(value, array)
            for plan in context.plans:
                self._ready(plan, device)
            yield Job(self, found, device, context, binding, check, recorder)
        except BaseException as caught:
            error = caught
            with Held():
                if context:
                    context.abandon()
                if recorder:
                    recorder.end_run(error, check.found if check else [])
            raise
        else:
            if recorder:
                recorder.end_run(None, check.found if check else [])
        finally:
            if binding is not None and chosen.alloc == "fresh" and not watched:
                binding.close()
        if not listeners:
            self._idle.setdefault(key, []).append(context)

    def _context(self, key: tuple, listeners: tuple, recorder, supplied: Plan | None) -> Context:
        """An idle context for these settings, or a new one."""
        from opstep.runtime.device.flagging import Flags, born
        from opstep.runtime.interpreter import Context

        idle = self._idle.get(key)
        if idle and not listeners:
            context = idle.pop()
            context.recorder = recorder
            return context
        device, setup, chosen, recording, flagged, _ = key
        fuse = Fuse.NOTHING if listeners or flagged is born else fusing_for(recording, device)

        def plan_for(
            graph: str, types: tuple[TensorType, ...], policy: Policy, carried: bool = False
        ) -> Plan:
            plan = supplied
            if plan is None or plan.signature != (graph, types):
                plan = self.plan_to_run(device, setup, graph, types, policy, carried, fuse)
            self._ready(plan, device)
            return plan

        store, on = self._store(device), self._device(device, setup)
        flags = Flags(on, flagged) if flagged else None
        return Context(on, store, plan_for, chosen, listeners, recorder, flags)

    def _ready(self, plan: Plan, device: str) -> None:
        """A run of this plan is at hand: its named tensors have their values there."""
        if self.verified.tensors and kind_of(device).computes:
            self.params.bring(plan, device)

    def on(self, device: str, setup: Setup = PLAIN) -> Device:
        """The device of that name, as runs of this program use it. Raises `DeviceError`."""
        return self._device(canonical(device), setup)

    def _device(self, name: str, setup: Setup) -> Device:
        key = (name, setup.on(name))
        if key not in self._devices:
            self._devices[key] = device_named(*key)
        return self._devices[key]

    def _store(self, device: str) -> Store:
        from opstep.runtime.device.store import Store

        if device not in self._stores:
            types = {name: d.type for name, d in self.verified.tensors.items()}
            self._stores[device] = Store(self._device(device, PLAIN), types)
        return self._stores[device]

    def reseed_with(self, seed: int | None) -> None:
        """`reseed`, where that is another seed; None leaves the program its own."""
        if seed is not None and seed != self.seed:
            self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Draws the params anew with this seed when they are next needed; values that were set
        stay.
        """
        self.seed = seed
        self.params.forget_drawn()
        self.forget_contexts()

    def forget_contexts(self) -> None:
        """The next run prepares its tensors again."""
        for contexts in self._idle.values():
            for context in contexts:
                context.unrecord()
        self._idle.clear()
