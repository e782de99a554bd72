"""Which ways to run an op are timed before its first run, and how often each runs for that."""

from __future__ import annotations

from collections import Counter
from time import perf_counter
from types import SimpleNamespace

from opstep.runtime.device.cuda.choice.choice import Candidate
from opstep.runtime.device.cuda.choice.trial import ENOUGH, _Trial

LONG = 1e5  # microseconds of a run that nobody wants twice


class Clock(_Trial):
    """A trial on a GPU that takes as long as is said. `runs`: how often each way ran."""

    def __init__(self, us: dict[str, float]):
        self.us, self.runs = us, Counter()
        self.device = SimpleNamespace(alloc=lambda nbytes, what: SimpleNamespace(address=0))

    def _work(self, made, scratch):
        return made[0]

    def _timed(self, work):
        self.runs[work] += 1
        return self.us[work]

    def _closely(self, work, once, sample, samples):
        return once


def tried(us: dict[str, float], refused: tuple[str, ...] = ()) -> Clock:
    """`found` has the times of those that were timed."""
    clock = Clock(us)
    ways = [Candidate(n, lambda n=n: None if n in refused else (n, 0)) for n in us]  # pyright: ignore
    clock.found = clock.quickly(ways, perf_counter() + 3600)  # pyright: ignore
    return clock


def test_a_hopeless_way_runs_once():
    clock = tried({"numba": 300.0, "library 0": LONG, "library 1": 100.0})
    assert clock.found == {"numba": 300.0, "library 0": LONG, "library 1": 100.0}
    assert clock.runs["library 0"] == 1
    assert clock.runs["library 1"] > 1


def test_a_first_run_may_be_slow_as_kernels_are_loaded():
    class Loading(Clock):
        def _timed(self, work):
            first = not self.runs[work]
            return super()._timed(work) + (1e4 if first else 0.0)

    clock = Loading({"numba": 100.0, "library 0": 50.0})
    ways = [Candidate(n, lambda n=n: (n, 0)) for n in clock.us]  # pyright: ignore
    assert clock.quickly(ways, perf_counter() + 3600) == {"numba": 100.0, "library 0": 50.0}


def test_ways_that_the_library_refuses_do_not_count():
    names = ["numba", *(f"library {k}" for k in range(8))]
    clock = tried(dict.fromkeys(names, 10.0), refused=("library 0", "library 3"))
    working = [n for n in names if n not in ("library 0", "library 3")]
    assert list(clock.found) == working[:ENOUGH]
