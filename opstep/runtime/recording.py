"""What is recorded of a run: when each op ran, and statistics of what it computed.

Times and statistics are taken where the ops run, between the launches of a stream, so that a run is
recorded without being slowed or brought into another order. `Layout` says once for a plan what is
recorded; each run of the plan gives its figures as arrays (`StreamRecord`, `HostRecord`), whose
rows are those of the layout. All times are ns of CLOCK_MONOTONIC (`time.monotonic_ns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.runtime.plan.plan import Alloc, Call, Free, Plan, Policy, Run

if TYPE_CHECKING:
    import numpy as np


COPY, FILL = 0, 1


class Taken(IntEnum):
    """What is recorded of a step: the times of its ops, their statistics as well, or nothing of
    them. False and True are the first two.
    """

    TIMES = 0
    STATISTICS = 1
    NOTHING = 2


class Launch(NamedTuple):
    """Ops that the host handed to a stream at once: rows lo..hi of ``Layout.rows[stream]``."""

    stream: int
    lo: int
    hi: int


class GraphLaunch(NamedTuple):
    """Ops that the host launched at once, as a graph captured before; a part for each stream."""

    parts: tuple[Launch, ...]


class Kernel(NamedTuple):
    """A kernel of a GPU, as it was launched. Sizes in threads and blocks; shared memory in bytes a
    block, registers of a thread.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    static_shared: int
    dynamic_shared: int


class Wait(NamedTuple):
    """A stream waits for another one: `row` is the first on `stream` that ran after it.

    ``source_row`` is the last row of ``source`` before the event that is waited for; -1 where the
    event came before any op.
    """

    stream: int
    row: int
    source: int
    source_row: int


@dataclass(slots=True)
class Layout:
    """What is recorded of each run of a plan.

    ``rows[stream]``: the steps that launch kernels there, in order. ``stats[stream]``: (step,
    value) of each tensor whose statistics are taken there, in order; a step may have several
    results, or none that are wanted. ``calls``: steps of control flow, run by the host.
    ``kernels[stream, row]``: what a row launches on a GPU, known when it first ran.
    """

    plan: Plan
    rows: list[list[int]]
    stats: list[list[tuple[int, int]]]
    launches: list[Launch | GraphLaunch] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    syncs: list[int] = field(default_factory=list)  # the stream that the host waits for, each time
    calls: list[int] = field(default_factory=list)
    kernels: dict[tuple[int, int], tuple[Kernel, ...]] = field(default_factory=dict)


class Activation(NamedTuple):
    """One run of one plan. Control flow (`caller`'s step `call`) activates plans turn by turn.

    `number` is different for every activation of a recording.
    """

    number: int
    step: int  # of the run, from 0
    layout: Layout
    caller: Activation | None = None
    call: int = -1
    turn: int = 0

    @property
    def plan(self) -> Plan:
        return self.layout.plan


class StreamRecord(NamedTuple):
    """What one stream did in an activation.

    `times`: i64[len(rows[stream]), 2], start and end of each op's kernels. `waits`: i64[n, 2],
    begin and end of each of ``[w for w in layout.waits if w.stream == stream]``. `stats`:
    i64[len(stats[stream]), WORDS], see `runtime.statistics`; None in steps without statistics.
    `moves`: i64[n, 4], copies and fills between the ops, where a device tells of them: start, end,
    bytes, and `COPY` or `FILL`. `stats_times`: i64[n, 2], begin and end of the statistics of each
    step in ``stats[stream]``, where a device tells that. `details`: i64[n], the words of what the
    recorder's `details` gave for each tensor in ``stats[stream]``; None where it has none.
    """

    activation: Activation
    stream: int
    times: np.ndarray
    waits: np.ndarray
    stats: np.ndarray | None
    moves: np.ndarray | None = None
    stats_times: np.ndarray | None = None
    details: np.ndarray | None = None


class HostRecord(NamedTuple):
    """What the host did in an activation: i64[n, 2], begin and end of each of the layout's.

    `launches`: handing work to a stream. On the CPU the host may work through a queue itself: in
    `syncs`, then. `calls`: control flow, from its first look at its operands to its last result.
    """

    activation: Activation
    launches: np.ndarray
    syncs: np.ndarray
    calls: np.ndarray


class Overhead(NamedTuple):
    """Time that a run took beside its ops and what hands them over; ns. `category`: plan, bind,
    compile, record (what is known is taken down), disk (the run waits for its files), between
    (steps), or write. `thread`: the run's, or the recorder's.
    """

    name: str
    category: str
    began_ns: int
    ended_ns: int
    thread: str = "run"


# Who is told how a run under way spends its time beside its steps; set by its recorder.
spender: ContextVar[Callable[[Overhead], None] | None] = ContextVar("spender", default=None)


@contextmanager
def spending(category: str, what: str) -> Iterator[None]:
    """Tells the recorder of the run under way, if there is one, how long that took."""
    report = spender.get()
    if report is None:
        yield
        return
    began = monotonic_ns()
    try:
        yield
    finally:
        report(Overhead(f"{category} {what}", category, began, monotonic_ns()))


class RunInfo(NamedTuple):
    """What is about to run."""

    program: Any  # the `Program`
    graph: str
    inputs: Mapping[str, np.ndarray]
    policy: Policy
    device: str
    threads: int | None
    seed: int
    steps: int  # how many are asked for
    title: str = ""  # of the device, for people; as `device` where it has none
    kernels: str | None = None  # whose run there, where there is a choice


class Outputs(Mapping[str, "np.ndarray"]):
    """A graph's outputs by name, each read when it is looked at: on a GPU that takes its time.

    `read(k)` gives the k-th; `shapes`: of all.
    """

    def __init__(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        read: Callable[[int], np.ndarray],
    ):
        self._indices = {name: k for k, name in enumerate(names)}
        self._scalars = [(name, k) for name, k in self._indices.items() if not shapes[k]]
        self._read = read

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read(self._indices[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)

    def scalars(self) -> dict[str, float]:
        return {n: float(self._read(k)) for n, k in self._scalars}


def live_bytes(plan: Plan) -> dict[int, int]:
    """Bytes of temporary tensors that are allocated while each step runs, by step."""
    live, found = 0, {}
    for instruction in plan.instructions:
        match instruction:
            case Alloc(buffer):
                live += plan.buffers[buffer].nbytes
            case Free(buffer):
                live -= plan.buffers[buffer].nbytes
            case Run(step) | Call(step):
                found[step] = live
    return found
