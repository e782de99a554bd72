"""A graph held ready to run on tensors of others, where they lie.

executable = Executable(program, "main", types, RunSettings(device="cuda"))
results = executable([ExternalTensor.of(x) for x in tensors])

Between calls a plan stays bound to its device; a call only tells the launches where inputs and
results are now. Results are written where the caller wants them, or to new memory. The values
between are in memory of ours, which the next call uses again.

- An input is never written. It is copied where its address is not one that kernels can read
  (`Device.alignment`), and a result where they cannot write.
- A result may be an input, an earlier result or a named tensor: see `Executable.aliases`.
- Named tensors take part where they are; `Tensors.adopt` makes memory of others theirs.
- Where somebody watches (a recording, listeners) and in modes that fill memory or allocate it anew,
  each call is bound anew to the same memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.api import program as hooks
from opstep.api.devices import kind_of
from opstep.api.external import ExternalTensor
from opstep.api.job import Job
from opstep.api.settings import RunSettings
from opstep.runtime.device.binding import Address, Binding
from opstep.runtime.device.external import ExternalMemory
from opstep.runtime.interpreter import Context, drive
from opstep.runtime.interrupts import AT_ONCE, NEVER, Held
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Plan

if TYPE_CHECKING:
    from opstep.runtime.device.protocols import Device, Memory, Own, Stream

Tensors = Sequence[ExternalTensor]
Targets = Sequence[ExternalTensor | None]


class Alias(NamedTuple):
    """What a result is that no op writes for itself. `kind`: ``input`` or ``result``, of which
    `index` is the number, or ``own``, a named tensor or a constant.
    """

    kind: str
    index: int = -1


class Executable:
    """`graph` for inputs of these concrete types. Each call runs one step; the settings that it
    knows are those of `Program.run`. `aliases` has for each result what it is an alias of, or None.

    Several threads may call it at a time: then each has memory of its own for the values between.
    Raises `OpstepError` where the types do not fit.
    """

    def __init__(
        self, program: hooks.Program, graph: str | None, types: Sequence[TensorType],
        settings: RunSettings = RunSettings(),
    ):  # fmt: skip
        self.program = program
        self.graph = program.graph(graph)
        self.settings = settings
        self.types = tuple(types)
        self.device: Device = program.on(settings.device, settings.setup)
        program.reseed_with(settings.seed)
        name, policy = self.graph.name.text, settings.policy
        self.plan = program.plan(name, self.types, policy, settings.device, setup=settings.setup)
        self.result_types = tuple(self.plan.values[v].type for v in self.plan.outputs)
        self.aliases = _aliases(self.plan)
        self.nbytes: list[Any] = [t.nbytes for t in self.types]
        self.result_nbytes: list[Any] = [t.nbytes for t in self.result_types]
        self._names = [b.name.text for b in self.graph.inputs]
        self._anew = policy.alloc == "fresh" or policy.fill == "nan"
        self._pure = _is_pure(self.plan)
        self._named = any(s.op.host for s in self.plan.steps) or any(
            b.kind == "param" for b in self.plan.buffers
        )
        self._store = program._store(settings.device)
        self._moves = self._store.moves
        self._idle: list[_Held] = []

    def __call__(
        self, inputs: Tensors, results: Targets | None = None, *, stream: int | None = None,
        recording: Any = None, listeners: Sequence[Any] = (),
    ) -> list[ExternalTensor]:  # fmt: skip
        """One step. `results`: tensors to write to, which overlap neither inputs nor each other;
        None for one that gets new memory, or is what it is an alias of. Returns when the results
        are there.

        With `stream`, the handle of a stream of CUDA, the step comes behind what is queued there,
        and what is queued there later comes behind the step. Nobody waits for a step that updates
        and asserts nothing and has no control flow; so memory is needed for all results, as ours
        would be given back before it is done with. Raises `OpstepError` as `Program.run` does.
        """
        self._check(inputs, results)
        foreign = None
        if stream is not None:
            if None in (results or (None,) * len(self.result_types)):
                raise InputError("a step on a stream needs memory for all of its results")
            foreign = self.device.foreign_stream(stream)
        self.device.enter()
        if recording or listeners or self._anew or hooks.interposed:
            if foreign is not None:
                foreign.synchronize()
            return self._run_anew(inputs, results, recording, listeners)
        held = self._take()
        try:
            given = held.places.place(inputs, results)
            self._run(held, foreign)
        except BaseException:
            with Held():
                held.context.abandon()
            raise
        self._idle.append(held)
        return given

    # --- held ready ---

    def _take(self) -> _Held:
        """An idle context with the plan bound, its named tensors in place."""
        if self._moves != self._store.moves:
            self._moves = self._store.moves
            self._idle.clear()
        try:
            held = self._idle.pop()
        except IndexError:
            held = _Held(self)
        if self._named:
            for plan in held.context.plans or [self.plan]:
                self.program._ready(plan, self.settings.device)
        return held

    def _run(self, held: _Held, foreign: Stream | None) -> None:
        places, context = held.places, held.context
        binding = held.binding or held.bind()
        if places.moved:
            binding.moved()
        if places.before or foreign is not None:
            context.enter(places.before, foreign)
        if self._pure:
            drive(context.issue(binding, places.after(binding), foreign))
            return
        with Held(AT_ONCE) as signals:
            _step(held.job, places, signals)

    # --- bound anew ---

    def _run_anew(self, inputs, results, recording, listeners) -> list[ExternalTensor]:
        named = dict(zip(self._names, inputs, strict=True))
        if hooks.interposed and not (recording or listeners):
            debugged = hooks.interposed(self.program, self.graph.name.text, named, self.settings)
            if debugged is not None:
                return self._written(debugged.outputs, results)
        places = Places(self)
        given = places.place(inputs, results)
        with (
            Held(AT_ONCE) as signals,
            self.program._running(
                self.graph.name.text, named, self.settings, listeners, recording, places=places
            ) as job,
        ):
            if places.before:
                job.context.enter(places.before)
            _step(job, places, signals)
        return given

    def _written(self, arrays: Sequence[Any], results: Targets | None) -> list[ExternalTensor]:
        given = []
        for k, array in enumerate(arrays):
            target = (results[k] if results else None) or self.allocate(k)
            self.device.write(target.memory, 0, target.type, array)
            given.append(target)
        return given

    def allocate(self, k: int) -> ExternalTensor:
        """New memory for a result."""
        memory = self.device.alloc(self.result_nbytes[k], "results")
        return ExternalTensor(memory.address, self.result_types[k], self.settings.device, memory)

    # --- what is handed over ---

    def _check(self, inputs: Tensors, results: Targets | None) -> None:
        self._check_types("input", inputs, self.types)
        if results is None:
            return
        self._check_types("result", results, self.result_types)
        taken = [(t.address, n) for t, n in zip(inputs, self.nbytes, strict=True)]
        for target, size in zip(results, self.result_nbytes, strict=True):
            if target is None:
                continue
            if target.readonly:
                raise InputError("memory for a result is readonly")
            first, end = target.address, target.address + size
            if size and any(n and a < end and first < a + n for a, n in taken):
                raise InputError("memory for a result overlaps an input or another result")
            taken.append((first, size))

    def _check_types(self, kind: str, tensors: Targets, types: tuple[TensorType, ...]) -> None:
        if len(tensors) != len(types):
            raise InputError(f"{len(tensors)} {kind}s are given; the graph has {len(types)}")
        device = self.settings.device
        for k, (tensor, t) in enumerate(zip(tensors, types, strict=True)):
            if tensor is None:
                continue
            if tensor.type is not t and tensor.type != t:
                raise InputError(f"{kind} {k} is {t}, not {tensor.type}")
            if tensor.device != device and kind_of(device).computes:
                raise InputError(f"{kind} {k} is on {tensor.device}, and the run on {device}")


class _Cell(ExternalMemory):
    """Where an input or a result is in the present call. `mask`: bits that its address must not
    have. `scratch`: where it is instead.
    """

    __slots__ = ("mask", "pointers", "scratch")

    def __init__(self, nbytes: int, mask: int):
        super().__init__(0, nbytes)
        self.mask = mask
        self.scratch: Memory | None = None
        self.pointers: Sequence[Callable[[int], Any]] = ()

    def move(self, address: int) -> None:
        self.address = address
        for point_to in self.pointers:
            point_to(address)


class Places:
    """Where the inputs and results of a call are, and a binding to that. `before` is work that has
    to be done first: copies of inputs that kernels cannot read where they are.
    """

    def __init__(self, executable: Executable):
        self.executable = executable
        self.device = executable.device
        self.types = executable.types
        plan = executable.plan
        self.inputs = [_cell(self.device, t) for t in self.types]
        self.results = {
            k: _cell(self.device, t)
            for k, t in enumerate(executable.result_types)
            if executable.aliases[k] is None
        }
        self._buffers = {plan.values[plan.outputs[k]].buffer: c for k, c in self.results.items()}
        self._inputs = [Address(c, 0) for c in self.inputs]
        self.before: list[Own] = []
        self.moved = False
        self._copies: list[tuple[int, int, int]] = []  # result, target, bytes

    def bind(self, context: Context) -> Binding:
        places = {b: Address(cell, 0) for b, cell in self._buffers.items()}
        name = self.executable.graph.name.text
        return context.bind_at(name, self.types, self._inputs, places)

    def follow(self, binding: Binding) -> None:
        """From now on the binding's launches learn of other places."""
        values = binding.plan.values
        cells = {values[v].buffer: c for v, c in zip(binding.plan.inputs, self.inputs, strict=True)}
        cells |= self._buffers
        for buffer, pointers in binding.pointers(cells).items():
            cells[buffer].pointers = pointers

    def place(self, inputs: Tensors, results: Targets | None) -> list[ExternalTensor]:
        """The tensors that the results will be."""
        self.moved = False
        if self.before:
            self.before = []
        for cell, tensor in zip(self.inputs, inputs, strict=True):
            address = tensor.address
            if address & cell.mask:
                source, address = address, self._scratch(cell)
                self.before.append(self.device.copy(source, address, cell.nbytes))
            if address != cell.address:
                self.moved = True
                cell.move(address)
        self._copies.clear()
        given: list[ExternalTensor] = []
        for k, alias in enumerate(self.executable.aliases):
            target = results[k] if results is not None else None
            if alias is None:
                given.append(self._place_result(k, target))
            else:
                given.append(self._place_alias(k, alias, target, inputs, given))
        return given

    def _place_result(self, k: int, target: ExternalTensor | None) -> ExternalTensor:
        if target is None:
            target = self.executable.allocate(k)
        cell, address = self.results[k], target.address
        if address & cell.mask:
            self._copies.append((k, address, cell.nbytes))
            address = self._scratch(cell)
        if address != cell.address:
            self.moved = True
            cell.move(address)
        return target

    def _place_alias(
        self, k: int, alias: Alias, target: ExternalTensor | None, inputs: Tensors,
        given: list[ExternalTensor],
    ) -> ExternalTensor:  # fmt: skip
        if target is None and alias.kind != "own":
            source = (inputs if alias.kind == "input" else given)[alias.index]
            t = self.executable.result_types[k]
            if source.type == t:
                return source
            return ExternalTensor(source.address, t, source.device, source.owner)
        target = target or self.executable.allocate(k)
        self._copies.append((k, target.address, self.executable.result_nbytes[k]))
        return target

    def _scratch(self, cell: _Cell) -> int:
        if cell.scratch is None:
            cell.scratch = self.device.alloc(cell.nbytes, "inputs and results out of line")
        return cell.scratch.address

    def after(self, binding: Binding) -> list[Own]:
        """What is to be done once the results are there: copies of those that are elsewhere."""
        outputs, copy = binding.plan.outputs, self.device.copy
        return [
            copy(binding.address_of(outputs[k]).address, target, nbytes)
            for k, target, nbytes in self._copies
        ]


class _Held:
    """A context with the plan bound in it, for one call at a time."""

    def __init__(self, executable: Executable):
        settings = executable.settings
        setup = settings.setup.on(settings.device)
        key = (settings.device, setup, settings.policy, None, False, None)
        self.executable = executable
        self.places = Places(executable)
        self.context = executable.program._context(key, (), None, None)
        self.binding: Binding | None = None
        self.job: Any = None
        if not executable.device.in_host_memory:  # memory is given back when nothing uses it
            weakref.finalize(self, _finish, self.context.streams)

    def bind(self) -> Binding:
        """In the first call, once its inputs and results have places."""
        binding = self.binding = self.places.bind(self.context)
        self.places.follow(binding)
        executable = self.executable
        self.job = Job(
            executable.program, executable.graph, executable.settings.device, self.context,
            binding, None, None,
        )  # fmt: skip
        return binding


def _step(job: Job, places: Places, signals: Held) -> None:
    """A step that may update named tensors, as `Program.run` has it, and copies of its results."""
    drive(job.context.compute(job.binding), signals.let_go)
    signals.when = NEVER  # what is committed is told
    drive(job.context.commit(job.binding))
    job.step_done()
    places.device.work_now(places.after(job.binding))


def _finish(streams: Sequence[Stream]) -> None:
    for stream in streams:
        stream.abandon()


def _cell(device: Device, t: TensorType) -> _Cell:
    nbytes: Any = t.nbytes  # concrete here
    return _Cell(nbytes, max(device.alignment, t.dtype.itemsize) - 1)


def _aliases(plan: Plan) -> list[Alias | None]:
    """For each output what else its memory is; None where it has memory of its own."""
    inputs = {plan.values[v].buffer: k for k, v in enumerate(plan.inputs)}
    results: dict[int, int] = {}
    found: list[Alias | None] = []
    for k, v in enumerate(plan.outputs):
        buffer = plan.values[v].buffer
        if buffer in inputs:
            found.append(Alias("input", inputs[buffer]))
        elif buffer in results:
            found.append(Alias("result", results[buffer]))
        elif plan.buffers[buffer].kind != "temp":
            found.append(Alias("own"))
        else:
            results[buffer] = k
            found.append(None)
    return found


def _is_pure(plan: Plan) -> bool:
    """Whether a run changes nothing but its results, and the host decides nothing in it."""
    changes = plan.commits or plan.early
    return not changes and not any(s.op.host or s.op.name == "assert" for s in plan.steps)
