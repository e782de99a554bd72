"""Times of the ops of a graph, compared with what the device can do.

Times are those of a recording: from the op's first kernel to its last, read where it runs. What an
op moves and computes is counted from its types (`describe`): every operand read once, every result
written once, so an op that finds its operands in a cache may pass the bandwidth of memory, and an
algorithm that needs fewer operations than the formula (FFT, Winograd) the rate of arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.runtime.device.protocols import Recorder
from opstep.runtime.plan.plan import Fuse, Plan, Step
from opstep.runtime.recording import HostRecord, Outputs, RunInfo, StreamRecord, Taken
from opstep.trace.describe import describe

if TYPE_CHECKING:
    from opstep.api.program import Program

WARM_UP = 3  # steps whose times are not taken


class Measured(NamedTuple):
    """One op of a plan. `seconds`: the median of its executions, so many in a step."""

    op: str
    site: str
    file: str
    line: int
    type: str  # of its results
    dtype: str  # that it computes in; empty where it computes with no floats
    seconds: float
    executions: float
    nbytes: int  # read and written, of one execution
    flops: int

    @property
    def a_step(self) -> float:
        """Seconds of a step that go to it."""
        return self.seconds * self.executions

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.seconds

    @property
    def rate(self) -> float:
        """Floating-point operations a second."""
        return self.flops / self.seconds

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0


class Ceilings(NamedTuple):
    """Measured limits of a device: bytes a second (read and written) in a large copy, and
    operations a second in a large matrix product of each dtype.
    """

    bandwidth: float
    arithmetic: Mapping[str, float]

    def shares(self, op: Measured) -> tuple[float, float | None]:
        """(of the bandwidth, of the arithmetic): None where an op computes with no floats."""
        most = self.arithmetic.get(op.dtype)
        return op.bandwidth / self.bandwidth, op.rate / most if most and op.flops else None


class Stopwatch(Recorder):
    """A recording of times alone: given to `Program.run` as its `recording`."""

    fuses = Fuse.NOTHING  # each op is measured

    def __init__(self) -> None:
        self._records: list[StreamRecord] = []
        self._numbers = count()
        self._step = -1

    # as a recording, and as a recorder

    def begin_run(self, info: RunInfo) -> Stopwatch:
        return self

    def values_to_record(self, plan: Plan) -> Sequence[tuple[int, int]]:
        return ()

    def begin_step(self) -> tuple[int, Taken]:
        self._step += 1
        return self._step, Taken.TIMES

    def next_number(self) -> int:
        return next(self._numbers)

    def add_record(self, record: StreamRecord | HostRecord) -> None:
        if isinstance(record, StreamRecord):
            self._records.append(record)

    def end_step(self, outputs: Outputs, failed: bool = False) -> None:
        """A step's records were taken."""

    def end_run(self, error: BaseException | None, unwritten: Sequence[Any]) -> None:
        """There is nothing to close."""

    def measured(self, skip: int = WARM_UP) -> list[Measured]:
        """Every op that ran a kernel after the first `skip` steps, in the order of the plans."""
        seconds: dict[tuple[int, int], list[float]] = {}
        plans: dict[int, Plan] = {}
        for record in self._records:
            activation = record.activation
            if activation.step < skip:
                continue
            plan = activation.plan
            plans[id(plan)] = plan
            rows = activation.layout.rows[record.stream]
            for step, (begin, end) in zip(rows, record.times.tolist(), strict=True):
                seconds.setdefault((id(plan), step), []).append((end - begin) / 1e9)
        steps = self._step + 1 - skip
        order = {key: index for index, key in enumerate(plans)}
        return [
            _described(plans[plan], step, seconds[plan, step], steps)
            for plan, step in sorted(seconds, key=lambda key: (order[key[0]], key[1]))
        ]


def _described(plan: Plan, number: int, seconds: list[float], steps: int) -> Measured:
    info = describe(plan, plan.steps[number])
    return Measured(
        *(info.name, info.site, info.file, info.line),
        *(", ".join(str(t) for _, t in info.results), _computes_in(plan.steps[number])),
        *(max(median(seconds), 1e-9), len(seconds) / steps, info.nbytes, info.flops),
    )


def _computes_in(step: Step) -> str:
    floats = (t.dtype.name for t in step.operand_types if t is not None and t.dtype.is_float)
    return next(floats, "")


def measure(
    program: Program, graph: str, inputs: Mapping[str, Any], steps: int, **options: Any
) -> list[Measured]:
    """Runs a graph so many times after a warm-up; what each op took.

    `options` are those of `Program.run`.
    """
    watch = Stopwatch()
    program.run(graph, inputs, steps=steps + WARM_UP, recording=watch, **options)
    program.forget_contexts()  # those kept for this recording
    return watch.measured()


def step_seconds(
    program: Program, graph: str, inputs: Mapping[str, Any], steps: int, **options: Any
) -> float:
    """Seconds of a step once warm, with nothing recorded."""
    program.run(graph, inputs, steps=WARM_UP, **options)
    return program.run(graph, inputs, steps=steps, **options).seconds / steps


# --- what the device can do -----------------------------------------------------------------------

_COPY = """
graph main(x: f32[N]) -> f32[N] {
  y = neg(x)
  return y
}
"""
_PRODUCT = """
graph main(a: DTYPE[N, N], b: DTYPE[N, N]) -> DTYPE[N, N] {
  y = matmul(a, b)
  return y
}
"""
_ROUNDS = 10


class Sizes(NamedTuple):
    """Sizes that ceilings are measured with: elements of the copy (f32), rows of the matrices."""

    copied: int
    rows: int


SIZES = Sizes(1 << 25, 1536)
SIZES_OF_GPU = Sizes(1 << 28, 4096)


def ceilings(device: str, dtypes: Sequence[str], **options: Any) -> Ceilings:
    """Measured on the device, in a second or so; `options` are those of `Program.run`."""
    from opstep.api.devices import kind_of

    sizes = SIZES_OF_GPU if kind_of(device).gpu else SIZES
    arithmetic = {}
    for dtype in dtypes:
        shapes = {"a": (sizes.rows,) * 2, "b": (sizes.rows,) * 2}
        found = _fastest(_PRODUCT.replace("DTYPE", dtype), dtype, shapes, device, **options)
        arithmetic[dtype] = found.rate
    copied = _fastest(_COPY, "f32", {"x": (sizes.copied,)}, device, **options)
    return Ceilings(max(copied.bandwidth, _plain_copy(device, 4 * sizes.copied)), arithmetic)


def _fastest(text: str, dtype: str, shapes: dict, device: str, **options: Any) -> Measured:
    """The only op of a program, on numbers of that dtype."""
    import numpy as np

    from opstep.api.program import loads
    from opstep.runtime.ir.types import DTYPES

    program = loads(text, "<ceiling>")
    block = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
    inputs = {
        name: np.resize(block, shape).astype(DTYPES[dtype].numpy) for name, shape in shapes.items()
    }
    return measure(program, "main", inputs, _ROUNDS, device=device, **options)[0]


def _plain_copy(device: str, nbytes: int) -> float:
    """Bytes a second, read and written, of the device's own copy."""
    from time import perf_counter

    from opstep.api.devices import device_named
    from opstep.runtime.ir.types import u8

    on = device_named(device)
    source, target = on.alloc(nbytes, "bench"), on.alloc(nbytes, "bench")
    stream = on.stream()
    for memory in (source, target):
        stream.submit(on.fill(memory, 0, nbytes, u8))
    work = on.copy(source.address, target.address, nbytes)
    seconds = []
    for _ in range(_ROUNDS):
        stream.synchronize()
        begin = perf_counter()
        stream.submit(work)
        stream.synchronize()
        seconds.append(perf_counter() - begin)
    return 2 * nbytes / median(seconds)


def dtypes_of(measured: Sequence[Measured]) -> list[str]:
    """Those that its ops compute floats in."""
    return list(dict.fromkeys(op.dtype for op in measured if op.dtype and op.flops))


def scaled(value: float, unit: str = "") -> str:
    """``51.2 TFLOP/s``"""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * factor:
            return f"{value / factor:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}"
