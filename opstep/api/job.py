"""One run under way: what comes of its steps, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opstep.api.devices import check_computes, kind_of
from opstep.runtime.interrupts import NEVER, ONCE, Held
from opstep.runtime.ir.diagnostics import names_listed
from opstep.runtime.ir.effects import effects_of
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.ir.graph import Graph, Return
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.plan.internal import ELSEWHERE, STATUS
from opstep.runtime.recording import Outputs

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.api.settings import RunSettings
    from opstep.runtime.device.binding import Binding
    from opstep.runtime.device.protocols import Device, Recorder
    from opstep.runtime.interpreter import Context
    from opstep.runtime.plan.plan import Plan, Policy
    from opstep.runtime.uninitialised import Unwritten


def recorder_of(
    program: Program, recording, graph: Graph, inputs, policy: Policy, settings: RunSettings
) -> Recorder:
    """What notes a run that begins in `recording`."""
    from opstep.runtime.recording import RunInfo

    device = settings.device
    check_computes(device, "recorded")
    runs_on = program.on(device, settings.setup)
    threads, kernels, *_ = settings.setup.on(device)
    return recording.begin_run(
        RunInfo(
            program, graph.name.text, inputs, policy, device, threads, program.seed,
            settings.steps, runs_on.title, kernels if kind_of(device).gpu else None,
        )
    )  # fmt: skip


def is_shared(program: Program, graph: Graph, device: Device) -> bool:
    """Whether ranks agree, in each run of a graph, that no assert of any failed. On a GPU the host
    would have to wait for that, so it is not asked where there is none.
    """
    if program.mesh.ranks == 1:
        return False
    found = effects_of([graph.name.text], program.verified)
    updates = found.updates and device.in_host_memory
    return found.collectives and bool(updates or found.asserts)


class Job:
    """A call of `Program.run`: its context, the graph bound there, what is told of each step."""

    def __init__(
        self, program: Program, graph: Graph, device: str, context: Context, binding: Binding,
        check, recorder,
    ):  # fmt: skip
        self.params = program.params
        self.asserts = program._asserts
        self.shared = is_shared(program, graph, context.device)
        self.failing: Sequence[int] = ()  # ranks of which an assert failed in the last step
        self.device = device
        self.context = context
        self.binding = binding
        self.check = check
        self.recorder = recorder
        returned = [s for s in graph.body if isinstance(s, Return)]
        self.names = [v.text for v in returned[0].values] if returned else []
        self._outputs: Outputs | None = None
        self.began = perf_counter()
        self.seconds = 0.0

    def outputs(self) -> list[np.ndarray]:
        """What the last step gave; on the CPU views of memory that the next one writes."""
        return [self.binding.array(v) for v in self.binding.plan.outputs]

    def _named(self) -> Outputs:
        """Those of the last step, whichever that is when they are looked at."""
        if self._outputs is None:
            plan, array = self.binding.plan, self.binding.array
            shapes: Any = [plan.values[v].type.shape for v in plan.outputs]
            self._outputs = Outputs(self.names, shapes, lambda k: array(plan.outputs[k]))
        return self._outputs

    def agree(self, signals: Held) -> None:
        """Before what a step updates is kept, once it is computed: ranks that have parts in it keep
        it only if no assert of any failed. What others are told is not taken back by a Ctrl-C.
        """
        from opstep.runtime.driving import Fence

        if not self.shared:
            return
        context = self.context
        Fence(context.streams, context.streams, context.device).wait()
        signals.let_go()
        signals.when = NEVER
        if self._ask_all(context.failed_assert()) and not context.failed:
            context.failed = ELSEWHERE
            context.device.write(*context.status, STATUS, ELSEWHERE)

    def _ask_all(self, code: int) -> bool:
        from opstep.runtime.device.ranks import connected

        codes = connected().world.gather(np.array([code], np.int64))
        self.failing = [rank for rank, (failed,) in enumerate(codes) if failed]
        return bool(self.failing)

    def step_done(self) -> None:
        """After each step: raises where an assert failed, and takes the outputs out of device
        memory.
        """
        if not self.context.device.in_host_memory:
            for plan in self.context.plans:
                self.params.outdate(plan, self.device)
        if self.context.failed:
            if self.recorder:  # all of its ops ran: they are what one wants to look at
                self.recorder.end_step(self._named(), failed=True)
            if self.context.failed == ELSEWHERE:
                ranks = names_listed([f"rank {rank}" for rank in self.failing])
                raise DeviceError(f"{ranks} failed an assert, so no rank keeps what this step did")
            raise self.asserts.error(self.context.failed)
        self.seconds = perf_counter() - self.began
        if self.recorder:
            self.recorder.end_step(self._named())

    def notify(self, on_step: Callable[[], Any] | None, signals: Held) -> None:
        """Calls `on_step`. The first Ctrl-C waits until it returns: who counts steps or keeps their
        params there has those of all that are finished.
        """
        if on_step:
            signals.when = ONCE
            on_step()

    def result(self) -> Result:
        arrays = [array.copy() for array in self.outputs()]
        unwritten = self.check.found if self.check else []
        return Result(self.names, arrays, self.binding.plan, self.seconds, unwritten)


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
        shown = (
            f"{n}: {TensorType(dtype_of(a.dtype), a.shape)}"
            for n, a in zip(self.names, self.outputs, strict=True)
        )
        return f"<Result {', '.join(shown)}>"


class Odd(NamedTuple):
    """A result with NaNs or infinities."""

    name: str
    size: int
    nan: int
    infinite: int

    @property
    def text(self) -> str:
        """``loss has 1 NaN of 1 elements``"""
        counts = {"NaN": self.nan, "infinite": self.infinite}
        told = " and ".join(f"{n:,} {kind}" for kind, n in counts.items() if n)
        return f"{self.name} has {told} of {self.size:,} elements"


def odd_results(results: Mapping[str, np.ndarray]) -> list[Odd]:
    """Those with NaNs or infinities."""
    floats = {n: a for n, a in results.items() if a.dtype.kind not in "iub"}
    found = [
        Odd(n, a.size, int(np.isnan(a).sum()), int(np.isinf(a).sum())) for n, a in floats.items()
    ]
    return [odd for odd in found if odd.nan or odd.infinite]
