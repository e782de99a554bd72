"""Hunts NaNs and infinities: runs at full speed with flags, and at the first step that raises one
says where it was born, of what, and which way it went.

hunt = opstep.hunt(program, "train", {"x": x}, steps=1000)
hunt = opstep.hunt(program, "train", ({"x": x} for x in batches))
print(hunt.report())
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

from opstep.api.debugging import ProgramHost
from opstep.api.devices import check_computes
from opstep.api.inputs import conform, inputs_for
from opstep.api.program import Program
from opstep.api.settings import BUDGET, RunSettings
from opstep.hunting.harmless import Harmless, Mark, marks_of
from opstep.hunting.report import Hunt, note_own
from opstep.runtime.debugger.machine import Machine
from opstep.runtime.device.flagging import born, leaving
from opstep.runtime.device.store import Before
from opstep.runtime.driving import drive
from opstep.runtime.interpreter import Context
from opstep.runtime.interrupts import AT_ONCE, NEVER, Held
from opstep.runtime.ir.diagnostics import OpstepError, did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.places import gradients_called
from opstep.runtime.ir.types import TensorType
from opstep.runtime.nan.findings import INTENDED, MASKED
from opstep.runtime.nan.kinds import KINDS, NO_ROLES, Criteria, Roles
from opstep.runtime.nan.tracing import Trace
from opstep.runtime.plan.plan import DEBUG, Fuse, Plan

if TYPE_CHECKING:
    import numpy as np

    from opstep.runtime.device.flagging import Raised, Which
    from opstep.runtime.device.protocols import Own, Recording


def hunt(
    program: Program,
    graph: str | None = None,
    inputs: Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None,
    *,
    steps: int | None = None,
    plan: Plan | None = None,
    kinds: Collection[str] | str | None = None,
    nan_only: bool = False,
    wanted: Collection[str] = (),
    masked: bool = False,
    recording: Recording | None = None,
    on_step: Callable[[], Any] | None = None,
    any_of_us: Callable[[bool], bool] | None = None,
    roles: Roles = NO_ROLES,
    **settings: Any,
) -> Hunt:
    """Runs a graph `steps` times, as `Program.run` does, until a NaN or an infinity comes out of an
    op. Then the step is replayed op by op from the state that it began with.

    `inputs` by name, for all steps; or an iterable of such, one a step, which is run to its end or
    for `steps`. `kinds`: what is hunted, see `docs/hunting.md`; None are NaNs and infinities, with
    `nan_only` NaNs. `wanted`: names of values whose infinities are as they should be; `masked`:
    what no output shows is an alarm, too. `plan`: as of `Program.run`; `settings`: likewise its
    `device`, `mode`, `streams`, `alloc`, `fill`, `sync`, `seed`, `threads`, `kernels`, `autotune`
    and `chaos`.

    The first step is replayed in any case, before it is run: elements that an op never wrote show
    only there; so is a step in which control flow calls a graph for the first time. With other
    kinds than nan and inf all steps are. Named tensors are left as the run leaves them; where
    something was found, as they were before that step. `any_of_us`: of several ranks, which all
    hunt, whether something holds on any. `roles`: what a framework knows of inputs and outputs.
    Raises `OpstepError` as `run` does.
    """
    how = RunSettings(steps=1 if steps is None else steps, **settings)
    check_computes(how.device, "hunted")
    if nan_only and kinds is not None:
        raise InputError("nan_only hunts NaNs alone, and kinds says what else: give one of them")
    found = program.graph(graph)
    program.reseed_with(how.seed)
    if kinds is None:
        kinds = KINDS[:1] if nan_only else KINDS
    criteria = replace(Criteria.parse(kinds, wanted), roles=roles)
    defined = names_of(program) if criteria.wanted else set()
    for name in criteria.wanted:
        if name not in defined:
            raise InputError(f"no value is called {name}", hint=did_you_mean(name, defined))
    hunter = Hunter(program, found.name.text, how, criteria, masked, plan)
    hunter.any_of_us = any_of_us or bool
    given = inputs_for(program, found, inputs)
    return hunter.hunt(_batches(given, steps), recording, on_step)


def _batches(inputs: Any, steps: int | None) -> Iterator[Mapping[str, Any]]:
    """The inputs of each step."""
    if isinstance(inputs, Mapping):
        return repeat(inputs, 1 if steps is None else steps)
    if isinstance(inputs, (str, bytes)) or not isinstance(inputs, Iterable):
        raise InputError(
            f"inputs are given as a {type(inputs).__name__}; they are arrays by name, or an "
            "iterable of such for the steps"
        )
    return islice(inputs, steps)


def names_of(program: Program) -> set[str]:
    """Those of all values, also with their graph's."""
    defined = set(program.module.tensors)
    for graph in program.graphs.values():
        names = [b.name.text for b in graph.inputs]
        names += [b.name.text for s in graph.body for b in getattr(s, "results", ())]
        defined.update(names, (f"{graph.name.text}.{n}" for n in names))
    return defined


class Hunter:
    """A hunt under way. `result`: what was found so far; `types`: of the inputs at hand."""

    def __init__(
        self, program: Program, graph: str, settings: RunSettings, criteria: Criteria,
        masked: bool, plan: Plan | None,
    ):  # fmt: skip
        self.program = program
        self.graph = graph
        self.settings = settings
        self.device = settings.device
        self.criteria = criteria
        self.masked = masked
        self.plan = plan
        self.flagged: Which = born if masked or plan is not None else leaving
        self.any_of_us: Callable[[bool], bool] = bool
        self.names = [b.name.text for b in program.graph(graph).inputs]
        self.arrays: list[np.ndarray] = []
        self.types: tuple[TensorType, ...] = ()
        self.result = Hunt(
            graph,
            self.device,
            kinds=str(criteria),
            wanted=tuple(sorted(criteria.wanted)),
            trains=bool(gradients_called(program.graphs, graph)),
        )
        self.plans = 0  # that were bound when a step was replayed last
        self.unwritten = 0  # results that debug mode has reported

    @cached_property
    def harmless(self) -> Harmless:
        """The flags that a replay has shown to do no harm."""
        return Harmless()

    def hunt(self, batches: Iterator[Mapping[str, Any]], recording, on_step) -> Hunt:
        first = next(batches, None)
        if first is None:
            raise InputError("there are no inputs: the iterable is at its end")
        self.set_inputs(first)
        at_once = self.replayed(0)
        if at_once and recording is None:
            return self.result
        with (
            Held(AT_ONCE) as signals,
            self.program._running(
                self.graph, self.inputs, self.settings, (), recording, self.flagged, self.plan
            ) as job,
        ):
            self.forget_children(job)
            state = SavedState(self.program, self.device, job.context)
            number = 0
            while True:
                if self.step(number, job, state, signals, at_once, number == 0):
                    if recording is not None:  # what is recorded of it is what one wants to see
                        with suppress(OpstepError):  # a failed assert
                            job.step_done()
                        if job.context.recorder is not None:
                            job.context.recorder.undone()
                    return self.result
                self.commit(job, on_step, signals)
                number += 1
                inputs = next(batches, None)
                if inputs is None:
                    return self.result
                if inputs is not first:
                    self._rebind(job, inputs)
                    first = inputs
                at_once = self.criteria.slow and self.replayed(number)

    def set_inputs(self, inputs: Mapping[str, Any]) -> None:
        """The inputs of the next step."""
        declared = self.program.graph(self.graph)
        self.arrays, self.types = conform(declared, inputs, self.program.module.source)

    def _rebind(self, job: Any, inputs: Mapping[str, Any]) -> None:
        """Other inputs; they may have other sizes."""
        types = self.types
        self.set_inputs(inputs)
        if self.types != types:
            job.binding = job.context.bind(self.graph, self.types)
            for plan in job.context.plans:
                self.program._ready(plan, self.device)
        for value, array in zip(job.binding.plan.inputs, self.arrays, strict=True):
            job.binding.set(value, array)
        if job.context.recorder is not None:
            job.context.recorder.set_inputs(self.inputs)

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return dict(zip(self.names, self.arrays, strict=True))

    def forget_children(self, job: Any) -> None:
        """A context that an earlier run left knows graphs that are new to this one."""
        job.binding.children.clear()
        job.context.plans[:] = [job.binding.plan]
        self.plans = 1

    def step(
        self, number: int, job: Any, state: SavedState, signals: Held, flagged: bool, first: bool
    ) -> bool:
        """Runs a step at full speed; whether it is bad, which may be known already. Where it ends
        with an exception, it has not been.
        """
        try:
            bad = self._run(number, job, state, flagged, first)
            signals.when = NEVER  # what is committed is reported
            return bad
        except BaseException:
            with Held():
                state.put_back()
            raise

    def commit(self, job: Any, on_step: Callable[[], Any] | None, signals: Held) -> None:
        """A step was good."""
        job.step_done()
        self.result.steps += 1
        job.notify(on_step, signals)
        signals.let_go()

    def _run(self, number: int, job: Any, state: SavedState, flagged: bool, first: bool) -> bool:
        state.save()
        try:
            drive(job.context.run(job.binding))
        except OpstepError:  # a loop past its limit, say: perhaps for a NaN
            state.put_back()
            if flagged or self.replayed(number):
                return True
            raise
        if flagged:
            state.swap()
            return True
        raised = [r for r in job.context.flags.raised() if self._counts(r, number)]
        self.result.unseen = self.harmless.unseen
        unwritten = job.check is not None and len(job.check.found) > self.unwritten
        self.unwritten = len(job.check.found) if job.check else 0
        fresh = not first and len(job.context.plans) > self.plans
        self.plans = len(job.context.plans)
        job.context.flags.clear()
        if not self.any_of_us(bool(raised or unwritten or fresh)):
            return False
        return self._examine(number, raised, state)

    # --- a step whose ops raised flags ---

    def _counts(self, raised: Raised, number: int) -> bool:
        """Whether a flag is of a kind, and at a place, that is not known to do no harm."""
        return bool(self.harmless.count(self._marks([raised]), number))

    def _marks(self, raised: list[Raised]) -> set[Mark]:
        return {m for m in marks_of(raised) if m[2] in self.criteria.kinds}

    def _examine(self, number: int, raised: list[Raised], state: SavedState) -> bool:
        """Replays the step; whether there is something wrong with it."""
        after = state.swap()
        if self.replayed(number):
            return True
        alarmed = bool(raised) and not (self.result.masked or self.result.intended)
        if self.any_of_us(alarmed):
            self.result.step = number
            self.result.hazards = self._hazards()
            self.result.unrepeated = [flag_text(r) for r in self._looked_closer(state) or raised]
            return True
        others = [*self.result.intended, *self.result.masked]
        self.harmless.add(self._marks(raised), others, number)
        self.result.unseen = self.harmless.unseen
        state.put(after)
        return False

    def _looked_closer(self, state: SavedState) -> list[Raised]:
        """Runs a step that is bad at full speed only once more, each op looked at; its flags."""
        if self.flagged is born:
            return []
        with self.program._running(self.graph, self.inputs, self.settings, (), None, born) as job:
            with suppress(OpstepError):
                drive(job.context.run(job.binding))
            flags = job.context.flags
            assert flags is not None
            found = [r for r in flags.raised() if self._counts(r, self.result.steps)]
            flags.clear()
        state.put_back()
        return found

    def replayed(self, number: int) -> bool:
        """Runs the step op by op; whether a NaN or an infinity comes out, or was not written."""
        self.result.replays += 1
        trace = self._trace()
        found = trace.findings()
        shown = (MASKED, INTENDED) if not self.masked else (INTENDED,)
        self.result.masked = [f for f in found if f.kind == MASKED]
        self.result.intended = [f for f in found if f.kind == INTENDED]
        note_own(self.result.own, self.result.intended)
        self.result.findings = [f for f in found if f.kind not in shown]
        if not self.any_of_us(bool(self.result.findings)):
            if trace.error is not None:
                raise trace.error
            return False
        self.result.step, self.result.error = number, trace.error
        machine = trace.machine
        code = machine.failed() if trace.error is None else 0
        self.result.failed = machine.host.failed_assert(code) if code else None
        self.result.inputs = self.inputs
        self.result.propagated = list(trace.links())
        updated = [n for n, versions in machine.history.named.items() if len(versions) > 1]
        self.result.state = {n: self.program.params[n].copy() for n in updated}
        return True

    def _trace(self) -> Trace:
        settings = replace(self.settings, chaos=None)
        host: Any = ProgramHost(self.program, self.graph, self.inputs, settings)
        machine = Machine(
            host, self.graph, self.arrays, self.types, self.names, DEBUG, 1, BUDGET
        )  # fmt: skip
        trace = Trace(machine, self.criteria, self.result.trains)
        trace.run()
        return trace

    def _hazards(self) -> list[str]:
        from opstep.runtime.plan.hazards import check

        how = self.settings
        plans = self.program.plans(
            self.graph, self.types, how.policy, how.device, setup=how.setup,
            fuse=Fuse.NOTHING if self.flagged is born else Fuse.ALL,
        )  # fmt: skip
        if self.plan is not None:
            plans[0] = self.plan
        return [str(h) for plan in plans for h in check(plan)]


class SavedState:
    """Named tensors that a run updates, as they were before the step under way: on the device."""

    def __init__(self, program: Program, device: str, context: Context):
        self.store = program._store(device)
        self.device = self.store.device
        self.context = context
        self._plans = 0
        self._names: list[str] = []
        self._before = Before(self.device, self.store)
        self._saving: list[Own] = []  # copies to be made before each step

    def save(self) -> None:
        """Before a step: nothing is under way."""
        self._before.names = ()
        if len(self.context.plans) > self._plans:  # control flow makes plans when it needs them
            self._plans = len(self.context.plans)
            self._names = _updated(self.context.plans)
            self._saving = self._before.copies(self._names)
        self.device.work_now(self._saving)
        self._before.names = self._names

    def swap(self) -> Before:
        """Puts back what was saved; gives what was there."""
        after = Before(self.device, self.store)
        self.device.work_now(after.copies(self._names))
        after.names = self._names
        self.put(self._before)
        return after

    def put_back(self) -> None:
        """After an error or an interrupt: the step has not been, whatever is still queued."""
        self.context.abandon()
        self.put(self._before)

    def put(self, state: Before) -> None:
        """Gives the tensors what they had then; it can be put again."""
        names = state.names
        self.device.work_now(state.back())
        state.names = names


def _updated(plans: list[Plan]) -> list[str]:
    names = {}
    for plan in plans:
        for step in plan.steps:
            for b in step.writes:
                if plan.buffers[b].kind == "param":
                    names[plan.buffers[b].name] = True
    return list(names)


def flag_text(raised: Raised) -> str:
    """A result that raised flags."""
    plan, value = raised.plan, raised.plan.values[raised.value]
    graph = plan.frames[value.frame].graph.name.text
    what = "NaN" if raised.nan else "infinities"
    return f"{raised.maker.op.name} {value.name}: {value.type} in graph {graph}: {what}"
