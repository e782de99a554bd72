"""What a recording costs a run of small ops: LeNet, 500 steps, beside PyTorch's profiler."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from bench_runtime import EXAMPLES
from harness import SCRATCH, Measured, at_most, bench, times_peer

import opstep

sys.path.append(str(Path(__file__).parent.parent / "tests" / "shared"))

STEPS, ROUNDS = 500, 9
WHERE = f"LeNet batch 32, {STEPS} steps"
WAYS = {
    "timeline": {"trace": SCRATCH / "lenet.pftrace"},
    "statistics": {"workspace": SCRATCH / "lenet.db"},
}
WAYS["both"] = WAYS["timeline"] | WAYS["statistics"]


@cache
def ours() -> dict[str, tuple[float, float]]:
    """By way of recording, "bare" for none: the seconds that the steps took, until the files were
    closed; and the longest time between the ends of two steps. Of several runs, by turns, the best:
    other work on the machine only makes them slower.
    """
    program = opstep.load(EXAMPLES / "lenet.opg")
    x = np.random.default_rng(0).standard_normal((32, 1, 8, 8), np.float32)
    best: dict[str, tuple[float, float]] = {}
    for _ in range(ROUNDS):
        for way, files in {"bare": {}, **WAYS}.items():
            (SCRATCH / "lenet.db").unlink(missing_ok=True)
            recording = opstep.Recording(**files) if files else None
            ends = [time.perf_counter()]
            program.run(
                "lenet", {"x": x}, steps=STEPS, recording=recording,
                on_step=lambda ends=ends: ends.append(time.perf_counter()),
            )  # fmt: skip
            if recording:
                recording.close()
            took, pause = time.perf_counter() - ends[0], float(np.diff(ends)[1:].max())
            so_far = best.get(way, (took, pause))
            best[way] = min(took, so_far[0]), min(pause, so_far[1])
    return best


@cache
def theirs() -> tuple[float, float]:
    """Seconds an op that PyTorch's profiler costs, and how many times as long a step takes."""
    import peers
    import torch
    from torch.profiler import ProfilerActivity, profile

    program = opstep.load(EXAMPLES / "lenet.opg")
    weights = {k: torch.from_numpy(v.copy()) for k, v in program.params.items()}
    given = torch.randn(32, 1, 8, 8)

    @torch.inference_mode()
    def steps() -> None:
        for _ in range(STEPS):
            peers.lenet(given, weights)

    def timed(call: Callable[[], Any]) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    def profiled() -> None:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True):
            steps()

    steps()
    pairs = [(timed(steps), timed(profiled)) for _ in range(3)]
    bare, taken = (min(times) for times in zip(*pairs, strict=True))
    return (taken - bare) / STEPS / ops(), taken / bare


def ops() -> int:
    plan = opstep.load(EXAMPLES / "lenet.opg").plan("lenet", symbols={"N": 32})
    return sum(bool(step.launches) for step in plan.steps)


@bench("{}, cost an op: " + WHERE, peer="torch.profiler, the same network",
       bars=[at_most(3, "µs"), times_peer(1)], over=["timeline", "statistics"])  # fmt: skip
def cost(way: str):
    spent = ours()[way][0] - ours()["bare"][0]
    return Measured(spent / STEPS / ops() * 1e6, theirs()[0] * 1e6, unit="µs")


@bench("{}: " + WHERE, peer="bare run", bars=[times_peer(1.25)], over=["timeline", "statistics"])
def slowdown(way: str):
    return Measured(ours()[way][0] * 1e3, ours()["bare"][0] * 1e3, unit="ms")


@bench("both: " + WHERE, peer="bare run", bars=[times_peer(1.5)])
def slowdown_of_both():
    return Measured(ours()["both"][0] * 1e3, ours()["bare"][0] * 1e3, unit="ms")


@bench("both, the longest pause: " + WHERE, peer="bare run", bars=[at_most(5, "ms")])
def pause():
    return Measured(ours()["both"][1] * 1e3, ours()["bare"][1] * 1e3, unit="ms")
