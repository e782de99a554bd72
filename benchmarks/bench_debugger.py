"""The debugger: going back, conditions on every op, and what it costs where it does nothing."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from bench_runtime import EXAMPLES, chain
from harness import Measured, at_most, bench, times_peer

import opstep
from opstep.api.debugging import Debugger
from opstep.api.rank_debugging import debug_ranks
from opstep.runtime.debugger.breakpoints import Wanted

SIZE = 1024
ROUNDS = 9
STEPS = 100  # commands in a sample


def debugged(length: int, **options: Any) -> Debugger:
    """A chain of adds, at its first op."""
    program = opstep.loads(chain(length, SIZE))
    x = np.ones(SIZE, np.float32)
    options = {"stop_on_entry": True, "threads": 1} | options
    debugger = Debugger(program, "chain", {"x0": x, "b": x}, **options)
    debugger.start()
    return debugger


def timed(action: Callable[[], Any]) -> float:
    """Seconds, without what Python's collector of garbage takes, as in all benchmarks."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        action()
        return time.perf_counter() - start
    finally:
        gc.enable()


def several(debugger: Debugger, command: str, times: int = STEPS) -> None:
    """Steps, and asks each time where it stands, as whoever shows it does."""
    for _ in range(times):
        assert debugger.go(command).reason == "step"
        debugger.stack()


@bench(
    "debugger: step back, f32[1024] adds, debug mode", peer="a step ahead, which runs the op",
    bars=[times_peer(1.0)],
)  # fmt: skip
def step_back():
    debugger = debugged((ROUNDS + 2) * STEPS)
    several(debugger, "over")  # kernels are compiled
    back, ahead = [], []
    for _ in range(ROUNDS):
        ahead.append(timed(lambda: several(debugger, "over")))
        back.append(timed(lambda: several(debugger, "back")))
        several(debugger, "over")
    scale = 1e6 / STEPS
    return Measured(statistics.median(back) * scale, statistics.median(ahead) * scale, "µs")


@bench("debugger: continue back over 1,000 ops", bars=[at_most(50, "ms")])
def continue_back():
    length = 1000
    debugger = debugged(length + 100)
    several(debugger, "over", length)
    taken = []
    for _ in range(ROUNDS):
        taken.append(timed(lambda: debugger.go("reverse_continue")))
        assert debugger.position == 0
        several(debugger, "over", length)
    return Measured(statistics.median(taken) * 1e3, unit="ms")


def on_every_op(armed: dict[str, list[Wanted]], base: dict[str, list[Wanted]]) -> Measured:
    """What breakpoints that never stop cost, in µs an op over those of `base`, debug mode."""
    length = 10_000
    debugger = debugged(length, stop_on_entry=False)
    taken: list[list[float]] = [[], []]
    for _ in range(7):
        for wanted, into in zip((base, armed), taken, strict=True):
            debugger.breakpoints.set_functions(wanted.get("functions", []))
            debugger.breakpoints.set_data(wanted.get("data", []))
            into.append(timed(debugger.restart))
            assert debugger.stop and debugger.stop.reason == "end"
    without, with_them = map(statistics.median, taken)
    return Measured((with_them - without) / length * 1e6, unit="µs")


CONDITION = {"functions": [Wanted(name="add", condition="max(abs(b)) > 1e6")]}
PREDICATE = {"data": [Wanted(name="*", condition="max(abs(value)) > 1e6")]}
NEVER = {"functions": [Wanted(name="relu")]}  # there is none, but it is looked for at each op


@bench("debugger: condition on every op, 10,000 ops f32[1024], over no breakpoint, an op",
       bars=[at_most(20, "µs")])  # fmt: skip
def condition():
    return on_every_op(CONDITION, {})


@bench("debugger: the same over a breakpoint that is not reached, an op")
def condition_alone():
    return on_every_op(CONDITION, NEVER)


@bench("debugger: a predicate on every result, over a breakpoint that is not reached, an op")
def predicate():
    return on_every_op(PREDICATE, NEVER)


@bench(
    "debugger: continue with no breakpoints, switches off, {}", peer="bare run",
    bars=[times_peer(1.1)], over=["lenet", "unet"],
)  # fmt: skip
def bare(name: str):
    from opstep.api import sources

    program = opstep.load(EXAMPLES / f"{name}.opg")
    found = program.graph("main")
    symbols = {"N": 64 if name == "lenet" else 4}
    inputs = sources.gather(program, found, ["random"], symbols, 0)
    steps = 20 if name == "lenet" else 1
    debugger = Debugger(program, "main", inputs, mode="async", steps=steps, stop_on_entry=True)
    debugger.start()
    peer = opstep.load(EXAMPLES / f"{name}.opg")

    def bare_run():
        peer.run("main", inputs, steps=steps)

    def controlled():
        assert debugger.go("continue").reason == "end"

    taken: list[list[float]] = [[], []]
    controlled(), bare_run()
    for turn in range(40):
        debugger.restart()
        both = [(controlled, taken[0]), (bare_run, taken[1])]
        for action, into in both if turn % 2 else both[::-1]:
            into.append(timed(action))
    ours, bare = (statistics.median(t) / steps * 1e3 for t in taken)
    return Measured(ours, bare, "ms")


@bench(
    "debugger: a step in 100,000 ops, 100 breakpoints", peer="in 200 ops, no breakpoint",
    bars=[times_peer(1.3)],
)  # fmt: skip
def large():
    ours, small = debugged(100_000), debugged(2 * STEPS)
    wanted = [Wanted(line=50_000 + 10 * k) for k in range(100)]
    path = ours.stack()[0].path
    assert all(b.verified for b in ours.breakpoints.set_lines(path, wanted))
    taken, peer = [], []
    for debugger, into in ((ours, taken), (small, peer)) * ROUNDS:
        debugger.restart()
        several(debugger, "over", STEPS // 2)
        into.append(timed(lambda debugger=debugger: several(debugger, "over")))
    scale = 1e6 / STEPS
    return Measured(statistics.median(taken) * scale, statistics.median(peer) * scale, "µs")


def ranked(length: int, extent: int) -> str:
    """Layers that end with an all_reduce, as shards of a matrix product have it."""
    text, x = f"graph main(x: f32[{extent}, {extent}]) -> f32[{extent}, {extent}] {{\n", "x"
    for k in range(length):
        text += f"  p{k} = matmul({x}, {x})\n  t{k} = tanh(p{k})\n  y{k} = all_reduce(t{k})\n"
        x = f"y{k}"
    return f"{text}  return {x}\n}}\n"


@bench(
    "debugger: a step of 8 ranks in lockstep, {}", peer="of one rank", bars=[at_most(10, "ms")],
    over=["f32[32, 32]", "f32[256, 256]"],
)  # fmt: skip
def ranks(which: str):
    extent = 32 if "32, 32" in which else 256
    text, inputs = ranked(ROUNDS * STEPS, extent), {"x": np.ones((extent, extent), np.float32)}
    options: dict[str, Any] = {"stop_on_entry": True, "threads": 1}
    many = debug_ranks(opstep.loads(text, ranks=8), "main", inputs, **options)
    one = Debugger(opstep.loads(text), "main", inputs, **options)
    taken: dict[Any, list[float]] = {many: [], one: []}
    for debugger in taken:
        debugger.start()
        several(debugger, "over", 3)  # kernels are compiled

    def step_all() -> None:
        for _ in range(STEPS):
            assert many.go("over").reason == "step"
            for thread, _ in many.threads():
                many.stack(thread)

    for _ in range(ROUNDS):
        taken[many].append(timed(step_all))
        taken[one].append(timed(lambda: several(one, "over")))
    ours, peer = (statistics.median(t) * 1e3 / STEPS for t in taken.values())
    return Measured(ours, peer, "ms")
