"""Statistics of tensors, and what recording costs a run before anything is written."""

from __future__ import annotations

import numpy as np
from bench_runtime import EXAMPLES, bound
from harness import Timed, bench, times_faster, times_peer

import opstep
from opstep.runtime.device.cpu.device import statistics_of
from opstep.runtime.device.protocols import Recorder
from opstep.runtime.statistics import BINS, LOWEST


@bench(
    "statistics of 2^24 f32, one thread",
    peer="the same figures through NumPy calls",
    bars=[times_faster(5)],
)
def one_tensor():
    x = np.random.default_rng(0).standard_normal(1 << 24, np.float32)
    ours, theirs = statistics_of(x, lanes=1), with_numpy(x)
    if ours.histogram != theirs["histogram"] or abs(ours.std - theirs["std"]) > 1e-9:
        raise ValueError("the figures differ")
    return Timed(lambda: statistics_of(x, lanes=1), lambda: with_numpy(x), unit="ms")


def with_numpy(x: np.ndarray) -> dict:
    """Taking for granted that all is finite, which spares NumPy copies under masks."""
    size = np.abs(x)
    zeros = x.size - np.count_nonzero(x)
    exponents = np.frexp(x)[1]
    exponents -= LOWEST + 1
    histogram = np.bincount(np.clip(exponents, 0, BINS - 1), minlength=BINS)
    histogram[-LOWEST - 1] -= zeros  # frexp gives them the exponent 0
    return {
        "nan": np.count_nonzero(np.isnan(x)),
        "posinf": np.count_nonzero(np.isposinf(x)),
        "neginf": np.count_nonzero(np.isneginf(x)),
        "zero": zeros,
        "subnormal": np.count_nonzero((size < np.finfo(x.dtype).tiny) & (x != 0)),
        "min": x.min(),
        "max": x.max(),
        "mean": x.mean(dtype=np.float64),
        "std": x.std(dtype=np.float64),
        "l2": np.linalg.norm(x),
        "absmax": size.max(),
        "histogram": tuple(histogram),
    }


class Nowhere(Recorder):
    """A recording, and its recorder, that keeps nothing: what is left is the cost of recording."""

    def __init__(self, stats: bool):
        self.stats = stats

    def begin_run(self, run):
        return self

    def values_to_record(self, plan):
        steps = enumerate(plan.steps) if self.stats else ()
        return [(n, v) for n, step in steps for v in step.results if step.launches]

    def begin_step(self):
        return 0, self.stats

    def next_number(self):
        return 0

    def add_record(self, record): ...
    def end_step(self, outputs, failed=False): ...
    def end_run(self, error, unwritten): ...


@bench("statistics of every op, AlexNet batch 32", peer="bare run", bars=[times_peer(1.2)])
def statistics_of_every_op():
    return beside_a_bare_run(Nowhere(stats=True))


@bench("times of every op, AlexNet batch 32", peer="bare run", bars=[times_peer(1.03)])
def times_of_every_op():
    return beside_a_bare_run(Nowhere(stats=False))


def beside_a_bare_run(recording):
    program = opstep.load(EXAMPLES / "alexnet.opg")
    inputs = {"x": np.random.default_rng(0).standard_normal((32, 1, 224, 224), np.float32)}
    recorded = bound(program, "main", inputs, recording=recording)
    return Timed(recorded, bound(program, "main", inputs), unit="ms", rounds=11)


@bench("statistics of every op, LeNet batch 1", peer="bare run")
def statistics_of_small_tensors():
    program = opstep.load(EXAMPLES / "lenet.opg")
    inputs = {"x": np.random.default_rng(0).standard_normal((1, 1, 8, 8), np.float32)}
    recorded = bound(program, "lenet", inputs, recording=Nowhere(stats=True))
    return Timed(recorded, bound(program, "lenet", inputs), unit="µs", rounds=31)
