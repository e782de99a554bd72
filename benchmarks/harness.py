"""How a benchmark is declared, and how it is timed.

A benchmark is a function in a file bench_*.py that prepares two things to compare and returns them:

    @bench("matmul 1024x1024", peer="NumPy", bars=[at_most(1.1, "times the peer")])
    def matmul():
        ...
        return Timed(lambda: plan.run(), lambda: np.matmul(a, b, out=c))

Ours and the peer's are run by turns, so what else the machine does meets both, and the medians are
compared. What is not a time (bytes, a count) is returned as `Measured`.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BENCHMARKS: list[Benchmark] = []

# A folder that benchmarks may write to, gone when the run ends.
_scratch = tempfile.TemporaryDirectory(prefix="opstep-bench-")
SCRATCH = Path(_scratch.name)

SCALES = {"s": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9}


def environment() -> dict[str, str]:
    """That of a process which finds this opstep, and packages where this one does."""
    path = [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(path))


def in_process(file: str, *arguments: str) -> dict[str, float]:
    """What a process of a benchmark's file measures: its last line, as JSON. Threads and memory are
    then its own.
    """
    done = subprocess.run(
        [sys.executable, file, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    return json.loads(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Bar:
    """What must be reached: `kind` says what is compared with `limit`."""

    kind: (
        str  # "value", "least": ours in its unit; "ratio": ours over peer; "faster": peer over ours
    )
    limit: float
    unit: str = ""

    def __str__(self) -> str:
        if self.kind == "faster":
            return f"≥ {self.limit:g}x faster"
        if self.kind == "least":
            return f"≥ {self.limit:,g} {self.unit}"
        return f"≤ {self.limit:g}{' ' + self.unit if self.kind == 'value' else 'x peer'}"

    def holds(self, ours: float, peer: float | None) -> bool:
        if self.kind == "value":
            return ours <= self.limit
        if self.kind == "least":
            return ours >= self.limit
        if not peer or not ours:
            return False
        return peer / ours >= self.limit if self.kind == "faster" else ours / peer <= self.limit


def at_most(limit: float, unit: str) -> Bar:
    """Ours, in its unit, is at most `limit`."""
    return Bar("value", limit, unit)


def at_least(limit: float, unit: str) -> Bar:
    """Ours, in its unit, is at least `limit`."""
    return Bar("least", limit, unit)


def times_peer(limit: float) -> Bar:
    """Ours is at most `limit` times the peer's."""
    return Bar("ratio", limit)


def times_faster(limit: float) -> Bar:
    """The peer's is at least `limit` times ours."""
    return Bar("faster", limit)


@dataclass
class Timed:
    """Two callables to be timed by turns; a call does `per` units of work, times are given a unit.

    `rounds`: how often each is sampled. `warmup`: calls before the first sample, not counted.
    `settle_s`: silence before each sample. Threads of a BLAS or of OpenMP go on spinning for a
    while after their work, and would take a core from whoever comes next.
    """

    ours: Callable[[], Any]
    peer: Callable[[], Any] | None = None
    per: int = 1
    peer_per: int | None = None  # where a call of the peer does another amount of work
    unit: str = "ms"
    rounds: int = 15
    warmup: int = 1
    least_s: float = 0.005  # a sample repeats its call until it takes this long
    settle_s: float = 0.0


@dataclass
class Measured:
    """Figures that are not times, or that the benchmark took itself."""

    ours: float
    peer: float | None = None
    unit: str = ""


@dataclass
class Benchmark:
    what: str
    peer: str
    bars: Sequence[Bar]
    prepare: Callable[..., Timed | Measured]
    arguments: tuple = ()


@dataclass
class Outcome:
    what: str
    ours: float
    unit: str
    peer_name: str = ""
    peer: float | None = None
    bars: list[tuple[str, bool]] = field(default_factory=list)
    error: str = ""

    @property
    def reached(self) -> bool:
        return not self.error and all(ok for _, ok in self.bars)

    def record(self) -> dict[str, Any]:
        """As it is written to JSON."""
        return {
            "what": self.what,
            "ours": self.ours,
            "unit": self.unit,
            "peer": self.peer,
            "peer_name": self.peer_name,
            "ratio": self.ours / self.peer if self.peer else None,
            "bars": [{"bar": text, "reached": ok} for text, ok in self.bars],
            "reached": self.reached,
            "error": self.error,
        }


def bench(what: str, *, peer: str = "", bars: Sequence[Bar] = (), over: Sequence[Any] = ()):
    """Registers the function below; with `over`, once a value, which `what` shows as ``{}``."""

    def register(function: Callable[..., Timed | Measured]):
        for arguments in [(value,) for value in over] or [()]:
            BENCHMARKS.append(Benchmark(what.format(*arguments), peer, bars, function, arguments))
        return function

    return register


def sample(call: Callable[[], Any], times: int) -> float:
    """Seconds that one call takes, from `times` in a row."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def calibrate(call: Callable[[], Any], warmup: int, least_s: float) -> int:
    """Warms up, and gives the number of calls that make a sample long enough."""
    once = 0.0
    for _ in range(max(1, warmup)):
        once = sample(call, 1)
    return max(1, round(least_s / max(once, 1e-9)))


def measure(
    timed: Timed, progress: Callable[[], None] = lambda: None
) -> tuple[float, float | None]:
    """Medians of ours and the peer's, in the unit asked for, taken by turns."""
    sides = [timed.ours] if timed.peer is None else [timed.ours, timed.peer]
    times = [calibrate(call, timed.warmup, timed.least_s) for call in sides]
    samples: list[list[float]] = [[] for _ in sides]
    gc.collect()
    gc.disable()
    try:
        for turn in range(timed.rounds):
            order = range(len(sides)) if turn % 2 == 0 else reversed(range(len(sides)))
            for k in order:
                time.sleep(timed.settle_s)
                samples[k].append(sample(sides[k], times[k]))
            progress()
    finally:
        gc.enable()
    scale = SCALES[timed.unit]
    work = [timed.per, timed.peer_per or timed.per]
    medians = [statistics.median(s) / w * scale for s, w in zip(samples, work, strict=False)]
    return medians[0], medians[1] if len(medians) > 1 else None


def judge(benchmark: Benchmark) -> Outcome:
    """Prepares, measures and compares with the bars; what fails is told, not raised."""
    try:
        found = benchmark.prepare(*benchmark.arguments)
        if isinstance(found, Measured):
            ours, peer = found.ours, found.peer
        else:
            ours, peer = measure(found)
    except Exception as error:  # a table with one broken line is worth more than none
        return Outcome(
            benchmark.what, 0.0, "", benchmark.peer, error=f"{type(error).__name__}: {error}"
        )
    bars = [(str(bar), bar.holds(ours, peer)) for bar in benchmark.bars]
    return Outcome(benchmark.what, ours, found.unit, benchmark.peer, peer, bars)
