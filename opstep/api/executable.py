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
- With listeners each call is bound anew to the same memory; on a GPU, also with a recording and in
  modes that fill memory or allocate it anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.api import program as hooks
from opstep.api.devices import fusing_for, kind_of
from opstep.api.external import ExternalTensor
from opstep.api.job import Job, recorder_of
from opstep.api.places import Places, Targets, Tensors, aliases_of
from opstep.api.settings import RunSettings
from opstep.runtime.device.binding import Binding
from opstep.runtime.device.flagging import Raised, Verdict, Which, born, leaving
from opstep.runtime.driving import drive
from opstep.runtime.interpreter import Context
from opstep.runtime.interrupts import AT_ONCE, NEVER, Held
from opstep.runtime.ir.errors import DeviceError, InputError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Fuse, Plan
from opstep.runtime.uninitialised import UninitialisedCheck

if TYPE_CHECKING:
    from opstep.runtime.device.protocols import Device, Recorder, Stream


Alarm = Callable[[Verdict], None]


class Executable:
    """`graph` for inputs of these concrete types. Each call runs one step; the settings that it
    knows are those of `Program.run`. `aliases` has for each result what it is an alias of, or None.

    Several threads may call it at a time: then each has memory of its own for the values between.
    `alarm`, if given, is called at the end of each call, with what will say whether a result has a
    NaN or an infinity: the step may still be under way. With `masked` those count that no result
    shows. Raises `OpstepError` where the types do not fit.
    """

    def __init__(
        self, program: hooks.Program, graph: str | None, types: Sequence[TensorType],
        settings: RunSettings = RunSettings(), alarm: Alarm | None = None, masked: bool = False,
    ):  # fmt: skip
        self.program = program
        self.alarm = alarm
        self.graph = program.graph(graph)
        self.settings = settings
        self.types = tuple(types)
        self.device: Device = program.on(settings.device, settings.setup)
        program.reseed_with(settings.seed)
        policy = settings.policy
        self.flagged: Which | None = None if alarm is None else born if masked else leaving
        self.plan = self._planned(Fuse.NOTHING if self.flagged is born else Fuse.ALL)
        self.result_types = tuple(self.plan.values[v].type for v in self.plan.outputs)
        self.aliases = aliases_of(self.plan)
        self.nbytes: list[Any] = [t.nbytes for t in self.types]
        self.result_nbytes: list[Any] = [t.nbytes for t in self.result_types]
        self._names = [b.name.text for b in self.graph.inputs]
        self._stays = self.device.in_host_memory  # whatever is bound follows tensors that move
        self._anew = not self._stays and (policy.alloc == "fresh" or policy.fill == "nan")
        self._pure = _is_pure(self.plan)
        self._named = any(s.op.traits.host for s in self.plan.steps) or any(
            b.kind == "param" for b in self.plan.buffers
        )
        self._store = program._store(settings.device)
        self._idle: dict[Any, list[_Held]] = {}  # by recording

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
            if not self._has_memory(results):
                raise InputError("a step on a stream needs memory for all of its results")
            foreign = self.device.foreign_stream(stream)
        self.device.enter()
        if recording or listeners or self._anew or hooks.interposed:
            if foreign is not None:
                foreign.synchronize()
            if hooks.interposed and not (recording or listeners):
                debugged = self._debugged(inputs, results)
                if debugged is not None:
                    return debugged
            if recording and self._stays and not listeners:
                return self._run_recorded(inputs, results, recording)
            if recording or listeners or self._anew:
                return self._run_anew(inputs, results, recording, listeners)
        held = self._take()
        return self._run(held, partial(held.places.place, inputs, results), foreign)

    def run(self, inputs: Sequence[int], results: Sequence[int], stream: int | None = None) -> None:
        """One step on tensors that are known to fit, by their addresses: nothing is checked. 0 for
        a result that stays the alias that it is. `stream`: see `__call__`.
        """
        if self._anew or hooks.interposed:
            self(*self._tensors(inputs, results), stream=stream)
            return
        foreign = None if stream is None else self.device.foreign_stream(stream)
        self.device.enter()
        held = self._take()
        self._run(held, partial(held.places.point, inputs, results), foreign)

    def repeat(self, inputs: Sequence[int], results: Sequence[int], stream: int) -> list[Raised]:
        """`run` that is waited for and raises no alarm; gives the flags that this step raised."""
        self.device.enter()
        held = self._take()
        flags = held.context.flags
        assert flags is not None
        Verdict(flags, held.context.ends).wait()
        before = flags.set_aside()
        foreign = self.device.foreign_stream(stream)
        self._issue(held, partial(held.places.point, inputs, results), foreign)
        Verdict(flags, held.context.ends).wait()
        raised = flags.raised()
        flags.put_back(before)
        self._idle.setdefault(held.recording, []).append(held)
        return raised

    def _planned(self, fuse: Fuse) -> Plan:
        how = self.settings
        return self.program.plan(
            self.graph.name.text, self.types, how.policy, how.device, setup=how.setup, fuse=fuse
        )

    # --- held ready ---

    def _take(self, recording: Any = None) -> _Held:
        """An idle context with the plan bound, its named tensors in place."""
        moves, held = self._store.moves, None
        while held is None or held.moves != moves:  # a named tensor has other memory
            try:
                held = self._idle[recording].pop()
            except (IndexError, KeyError):
                held = _Held(self, moves, recording)
        if self._named:
            for plan in held.context.plans or [self.plan]:
                self.program._ready(plan, self.settings.device)
        return held

    def _run(self, held: _Held, place: Callable[[], Any], foreign: Stream | None) -> Any:
        """One step, its inputs and results placed first; gives what `place` does."""
        placed = self._issue(held, place, foreign)
        if self.alarm is not None:
            self._tell(held.context)
        self._idle.setdefault(held.recording, []).append(held)
        return placed

    def _issue(self, held: _Held, place: Callable[[], Any], foreign: Stream | None) -> Any:
        try:
            placed = place()
            self._step(held, foreign)
        except BaseException:
            with Held():
                held.context.abandon()
            raise
        return placed

    def _run_recorded(self, inputs: Tensors, results: Targets | None, recording: Any) -> Any:
        arrays = dict(zip(self._names, map(np.asarray, inputs), strict=True))
        recorder = recorder_of(
            self.program, recording, self.graph, arrays, self.settings.policy, self.settings
        )
        error: BaseException | None = None
        check: UninitialisedCheck | None = None
        try:
            held = self._take(recording)
            check = held.check
            held.record(recorder)
            return self._run(held, partial(held.places.place, inputs, results), None)
        except BaseException as caught:
            error = caught
            raise
        finally:
            with Held():
                recorder.end_run(error, check.take() if check else [])

    def _step(self, held: _Held, foreign: Stream | None) -> None:
        places, context = held.places, held.context
        binding = held.binding or held.bind()
        if places.moved:
            binding.moved(places.number)
        quick, before = self._pure and context.recorder is None, places.before
        after = places.after(binding) if quick else []
        theirs = foreign if quick else None
        if theirs is not None and context.launched_on(theirs, binding, before, after):
            return
        if before or foreign is not None or context.ends:
            context.enter(before, foreign)
        if quick:
            context.issue(binding, after, foreign)
            return
        with Held(AT_ONCE) as signals:
            _step(held.job, places, signals)

    def _tell(self, context: Context) -> None:
        if self.alarm is not None and context.flags is not None:
            self.alarm(Verdict(context.flags, context.ends))

    # --- bound anew ---

    def _run_anew(self, inputs, results, recording, listeners) -> list[ExternalTensor]:
        named = dict(zip(self._names, inputs, strict=True))
        fuse = fusing_for(recording, self.settings.device)
        places = self.places(Fuse.NOTHING if listeners else fuse)
        given = places.place(inputs, results)
        with (
            Held(AT_ONCE) as signals,
            self.program._running(
                self.graph.name.text,
                named,
                self.settings,
                listeners,
                recording,
                self.flagged,
                places=places,
            ) as job,
        ):
            if places.before:
                job.context.enter(places.before)
            _step(job, places, signals)
            self._tell(job.context)
        return given

    def _debugged(self, inputs: Tensors, results: Targets | None) -> list[ExternalTensor] | None:
        """A step under the debugger that is attached; None where nobody wants to see it."""
        assert hooks.interposed is not None
        named = dict(zip(self._names, inputs, strict=True))
        debugged = hooks.interposed(self.program, self.graph.name.text, named, self.settings)
        return None if debugged is None else self._written(debugged.outputs, results)

    def _written(self, arrays: Sequence[Any], results: Targets | None) -> list[ExternalTensor]:
        given = []
        for k, array in enumerate(arrays):
            target = (results[k] if results else None) or self.allocate(k)
            self.device.write(target.memory, 0, target.type, array)
            given.append(target)
        return given

    def places(self, fuse: Fuse = Fuse.ALL) -> Places:
        """`fuse`: which ops of the call may run as one."""
        plan = self.plan if fuse is Fuse.ALL else self._planned(fuse)
        return Places(plan, self.device, self.aliases, self.allocate)

    def allocate(self, k: int) -> ExternalTensor:
        """New memory for a result."""
        memory = self.device.alloc(self.result_nbytes[k], "results")
        return ExternalTensor(memory.address, self.result_types[k], self.settings.device, memory)

    # --- what is handed over ---

    def _tensors(
        self, inputs: Sequence[int], results: Sequence[int]
    ) -> tuple[list[ExternalTensor], list[ExternalTensor | None]]:
        """Those at these addresses."""
        device = self.settings.device
        given = [ExternalTensor(a, t, device) for a, t in zip(inputs, self.types, strict=True)]
        wanted = [
            ExternalTensor(a, t, device) if a or alias is None else None
            for a, t, alias in zip(results, self.result_types, self.aliases, strict=True)
        ]
        return given, wanted

    def _has_memory(self, results: Targets | None) -> bool:
        """Whether no result needs memory of ours."""
        given = results or (None,) * len(self.aliases)
        return not any(
            target is None and (alias is None or alias.kind == "own")
            for target, alias in zip(given, self.aliases, strict=True)
        )

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


class _Held:
    """A context with the plan bound in it, for one call at a time. `moves`: of the store, before
    it is bound.
    """

    def __init__(self, executable: Executable, moves: int, recording: Any):
        settings, policy = executable.settings, executable.settings.policy
        setup = settings.setup.on(settings.device)
        key = (settings.device, setup, policy, recording, executable.flagged, None)
        self.executable = executable
        self.moves = moves
        self.recording = recording
        self.places = executable.places(fusing_for(recording, settings.device))
        checked = recording is not None and policy.fill == "nan" and policy.sync == "op"
        self.check = UninitialisedCheck() if checked else None  # what it finds is recorded
        listeners = (self.check,) if self.check else ()
        self.context = executable.program._context(key, listeners, None, None)
        self.binding: Binding | None = None
        self.job: Any = None
        if not executable.device.in_host_memory:  # memory is given back when nothing uses it
            ending = weakref.finalize(self, _finish, self.context)
            ending.atexit = False  # the streams are gone by then

    def record(self, recorder: Recorder) -> None:
        """The next run has this recorder."""
        self.context.recorder = recorder
        if self.job is not None:
            self.job.recorder = recorder

    def bind(self) -> Binding:
        """In the first call, once its inputs and results have places."""
        binding = self.binding = self.places.bind(self.context)
        self.places.follow(binding)
        executable, program = self.executable, self.executable.program
        self.job = Job(
            program, executable.graph, executable.settings.device, self.context, binding,
            self.check, self.context.recorder,
        )  # fmt: skip
        return binding


def _step(job: Job, places: Places, signals: Held) -> None:
    """A step that may update named tensors, as `Program.run` has it, and copies of its results."""
    drive(job.context.compute(job.binding), signals.let_go)
    job.agree(signals)
    signals.when = NEVER  # what is committed is told
    drive(job.context.commit(job.binding))
    job.step_done()
    places.device.work_now(places.after(job.binding))


def _finish(context: Context) -> None:
    """Waits for what is under way."""
    with suppress(DeviceError):
        for event in context.ends:
            event.wait()
    for stream in context.streams:
        stream.abandon()


def _is_pure(plan: Plan) -> bool:
    """Whether a run changes nothing but its results, and the host decides nothing in it."""
    changes = plan.commits or plan.early
    return not changes and not any(s.op.traits.host or s.op.name == "assert" for s in plan.steps)
