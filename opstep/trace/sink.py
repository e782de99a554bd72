"""Sinks: each writes the records of runs to one file. `recording` calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Plan, Step
from opstep.runtime.recording import HostRecord, Overhead, RunInfo, StreamRecord
from opstep.runtime.statistics import Statistics

if TYPE_CHECKING:
    import numpy as np

    from opstep.trace.selection import Details


class Numbering:
    """Numbers of the ops of a plan, from its first. Those that run as one have numbers of
    their own, in the order of the program, and the last of them stands for all. `ops`: the op of
    each number; `step_of`: the plan's step that runs it; `first`, `last`: of each step the numbers
    of its first op and of its last.
    """

    def __init__(self, plan: Plan):
        self.ops: list[Step] = []
        self.step_of: list[int] = []
        self.first: list[int] = []
        self.last: list[int] = []
        for number, step in enumerate(plan.steps):
            self.first.append(len(self.ops))
            self.ops += step.members or (step,)
            self.last.append(len(self.ops) - 1)
            self.step_of += [number] * (len(self.ops) - len(self.step_of))

    def __len__(self) -> int:
        return len(self.ops)

    def stands_for(self, op: int) -> int:
        """The op whose kernel runs this one: itself, unless it is one of several."""
        return self.last[self.step_of[op]]

    def giver(self, step: int, value: int) -> tuple[int, int]:
        """The op of a step that gives a value, and the index among its results."""
        for op in range(self.first[step], self.last[step] + 1):
            if value in self.ops[op].results:
                return op, self.ops[op].results.index(value)
        raise KeyError(value)


@dataclass(slots=True, eq=False)
class Run:
    """One run that is recorded.

    Calls of ``program.run`` under one `Recording` that differ only in their inputs are steps of one
    run: a training loop. `key` names the run everywhere: in the workspace (``runs.key``) and in the
    timeline (argument ``run`` of every slice).
    """

    key: str  # 8 hexadecimal digits, random
    info: RunInfo  # of the first call; its `inputs` are copies
    began: float  # seconds since the epoch (time.time)
    began_ns: int  # the same moment in ns of CLOCK_MONOTONIC, which all records count in
    selection: str  # what `stats` was: "all", "none", "relu:*,conv1.*"
    every: int  # statistics of each `every`th step
    files: Mapping[str, Path]  # "workspace" and "trace": where the recording goes
    params: Mapping[str, np.ndarray]  # before the first step: those that no seed can draw again
    name: str | None = None
    tags: Mapping[str, str | int | float] = field(default_factory=dict)
    keep_inputs: int = 0  # what a repeat needs is kept of each so many steps; 0: of none
    details: Details = field(default_factory=lambda: _nothing())  # what is taken beyond statistics
    initial: list[Initial] = field(default_factory=list)  # complete when the first record comes
    # by id: first number, the plan, how its ops are counted
    _plans: dict[int, tuple[int, Plan, Numbering]] = field(default_factory=dict)
    _ops: int = 0  # numbers given

    def first_op(self, plan: Plan) -> int:
        """Number of the plan's first op in the run; the others follow (`numbering`).

        All sinks number ops like this, so that what they write can be joined: plans in the order in
        which they are first asked for, which is that of the records.
        """
        if id(plan) not in self._plans:
            numbering = Numbering(plan)
            self._plans[id(plan)] = (self._ops, plan, numbering)
            self._ops += len(numbering)
        return self._plans[id(plan)][0]

    def numbering(self, plan: Plan) -> Numbering:
        self.first_op(plan)
        return self._plans[id(plan)][2]

    def op(self, plan: Plan, step: int) -> int:
        """The number of a step's op in the run; of several that run as one, that of the last."""
        return self.first_op(plan) + self.numbering(plan).last[step]

    def numbers_before(self, plan: Plan) -> dict[int, int]:
        """Of values that a plan finds, the numbers below 0 that stand for the ops that gave them:
        inputs of the run's graph, and named tensors before the plan updates them.
        """
        numbers = {
            (i.kind == "input", i.name): (-1 - k, i.type) for k, i in enumerate(self.initial)
        }
        inputs = plan.inputs if plan.graph == self.info.graph else ()
        names = {v: (True, plan.values[v].name) for v in inputs}
        computed = {v for step in plan.steps for v in (*step.results, *step.changed)}
        for value, v in enumerate(plan.values):
            if v.buffer >= 0 and plan.buffers[v.buffer].kind == "param" and value not in computed:
                names[value] = False, plan.buffers[v.buffer].name
        found = {}
        for value, name in names.items():
            number, type_ = numbers.get(name, (0, None))
            if type_ == plan.values[value].type:
                found[value] = number
        return found


def _nothing() -> Details:
    from opstep.trace.selection import Details  # with kernels, which reading a workspace needs not

    return Details()


class Initial(NamedTuple):
    """An input or named tensor before the first step; its statistics, where they are wanted, and
    what is taken beyond them.
    """

    kind: str  # input, param or state
    name: str
    type: TensorType
    statistics: Statistics | None
    details: np.ndarray | None = None


class Checkpoint(NamedTuple):
    """Tensors that a repeat from `step` on needs; no step before it is needed then."""

    step: int
    inputs: Mapping[str, np.ndarray]
    params: Mapping[str, np.ndarray]  # all named tensors that have values, before the step

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (*self.inputs.values(), *self.params.values()))


class StepDone(NamedTuple):
    """A step that has ended; all its records were taken before."""

    step: int
    began_ns: int
    ended_ns: int
    metrics: Mapping[str, float]  # scalar outputs by name
    failed: bool = False  # an assert did: all ops ran, but the step is not counted as finished
    repeatable: bool = True  # it and all before it ran on the inputs of the run's first call
    # When the step before it ended, and when the recorder had taken that one down; for the first
    # of a call when that began, twice.
    since_ns: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class RunEnd:
    """The end of a run. `error`: None where all went well."""

    ended_ns: int
    steps: int  # that were finished
    error: BaseException | None
    unwritten: Sequence[Any]  # of `runtime.uninitialised.Unwritten`
    outputs: Mapping[str, np.ndarray]  # of the last step
    params: Mapping[str, np.ndarray]  # named tensors that the run updated, as they are now
    undone: bool = False  # they are as they were before the last step

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended it, so that nothing was wrong with it."""
        from asyncio import CancelledError

        ends = (KeyboardInterrupt, GeneratorExit, CancelledError, SystemExit)
        return isinstance(self.error, ends)


@dataclass(slots=True)
class SinkReport:
    """The outcome of a sink, for people. `counts`: what and how many, such as ("slices", 120).
    `problem`: why it could not write all of it, else None.
    """

    path: Path
    nbytes: int
    counts: list[tuple[str, int]] = field(default_factory=list)
    problem: str | None = None
    findings: list[str] = field(default_factory=list)  # where NaNs and infinities came from


class FailedSink:
    """In place of a sink whose file could not be begun."""

    def __init__(self, path: Path):
        self.path = path

    def close(self, ends: Sequence[tuple[Run, RunEnd]] = ()) -> SinkReport:
        return SinkReport(self.path, 0)


class Sink(Protocol):
    """Writes records to one file. All methods but the constructor are called from one thread, the
    writer's; after one has raised (OSError, sqlite3.Error), only `close` is called.

    Opening a file that cannot be used raises `InputError` from the constructor, before anything
    runs.
    """

    path: Path

    def begin_run(self, run: Run) -> None: ...
    def add_record(self, run: Run, record: StreamRecord | HostRecord) -> None: ...
    def add_overhead(self, run: Run, spent: Overhead) -> None: ...
    def end_step(self, run: Run, step: StepDone) -> None: ...
    def add_checkpoint(self, run: Run, checkpoint: Checkpoint) -> None: ...
    def end_run(self, run: Run, end: RunEnd) -> None: ...

    def flush(self) -> None:
        """Makes steps that have ended part of the file, where a killed process leaves them: called
        when nothing is queued, and every now and then. Steps that have not ended are not to be seen
        by readers of a workspace.
        """
        ...

    def close(self, ends: Sequence[tuple[Run, RunEnd]] = ()) -> SinkReport:
        """`ends`: of runs that were not over when a method raised."""
        ...
