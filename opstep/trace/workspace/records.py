"""Records that the accessors of a workspace give: one a row, named as in `schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from opstep.runtime.statistics import Statistics


class OpRecord(NamedTuple):
    """One op of a run, as it was planned."""

    op: int  # its number in the run
    name: str  # conv2d, relu, while, update
    site: str  # its frame and first result, main/features:p/c: the same in all runs
    graph: str  # whose text holds its statement
    file: str
    line: int
    statement: str
    operands: list[tuple[str, str]]  # names and types
    results: list[str]  # names
    attrs: dict[str, Any]
    stream: int
    bytes: int  # read and written by one execution
    flops: int
    live_bytes: int | None  # of temporary tensors while it runs
    fused_into: int | None = None  # the op in whose kernel it runs; `bytes` and `flops` are 0 then


class ExecutionRecord(NamedTuple):
    """One time that an op ran. Times are ns of CLOCK_MONOTONIC; None where it has no kernels."""

    execution: int  # its number in the run
    step: int
    op: int
    name: str  # of the op
    site: str
    stream: int  # -1: the host
    turn: int  # of the loop that its plan belongs to
    start_ns: int | None
    end_ns: int | None

    @property
    def seconds(self) -> float | None:
        if self.start_ns is None or self.end_ns is None:
            return None
        return (self.end_ns - self.start_ns) / 1e9


class StatRecord(NamedTuple):
    """The statistics of one tensor, each time that it was computed."""

    step: int  # -1: before the first; of inputs, params and states
    op: int  # below 0 for those
    execution: int
    name: str  # of the op
    value: str  # of the tensor
    site: str
    line: int
    statistics: Statistics


class Quantiles(NamedTuple):
    """Those of one tensor's finite elements, each time that it was computed; None where it has
    none. Names as in `StatRecord`.
    """

    step: int
    op: int
    execution: int
    name: str
    value: str
    site: str
    line: int
    p1: float | None
    p50: float | None
    p99: float | None
    abs_p1: float | None  # of the magnitudes
    abs_p50: float | None
    abs_p99: float | None


class Signed(NamedTuple):
    """Histograms of one tensor by sign: bins as those of `Statistics.histogram`."""

    step: int
    op: int
    execution: int
    name: str
    value: str
    site: str
    line: int
    negative: tuple[int, ...]
    positive: tuple[int, ...]


class Channel(NamedTuple):
    """One channel of a tensor: its finite elements, and their figures."""

    step: int
    op: int
    execution: int
    name: str
    value: str
    site: str
    line: int
    channel: int
    finite: int
    min: float | int | None
    max: float | int | None
    zero: int


class FirstBad(NamedTuple):
    """The first tensor with a NaN or an infinity. `verdict`: ``origin`` (its operands were finite),
    ``propagated`` (one was not), or None: the statistics of an operand were not taken.
    """

    stat: StatRecord
    verdict: str | None


class Finding(NamedTuple):
    """A problem of a run. `op` is None where no op is at fault."""

    step: int
    op: int | None
    kind: str  # nan, inf, unwritten, error
    value: str | None
    file: str | None
    line: int | None
    message: str


class Metric(NamedTuple):
    """A scalar of one step. `value` is None where it was NaN."""

    step: int
    name: str
    value: float | None


class Checkpoint(NamedTuple):
    """Named tensors as they were together, after step `step` (-1: before the first)."""

    id: int
    step: int
    kind: str  # start, end
    saved: str
    tensors: list[TensorRecord]


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor that is kept, without its elements."""

    id: int
    name: str
    run: int | None  # None: saved by hand
    key: str | None  # of the run
    step: int | None
    kind: str  # input, param, state, output, saved
    checkpoint: int | None
    dtype: str  # f32, bf16, i64, …
    shape: tuple[int, ...]
    nbytes: int
    digest: str
    saved: str

    @property
    def type(self) -> str:
        """``f32[6, 1, 3, 3]``"""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def reference(self) -> str:
        """A name of this tensor and no other: ``conv1.w@3f2a9c01:12``"""
        return self.name if self.key is None else f"{self.name}@{self.key}:{self.step}"
