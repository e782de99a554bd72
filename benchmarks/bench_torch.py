"""Models of PyTorch beside eager PyTorch and `torch.compile` (inductor, for which there must be a
C++ compiler), through both doors: `torch.compile(backend="opstep")` and `opstep.from_torch`.

Each case is a process of its own, which this file is, too: threads and memory are then the case's.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import known_models
from harness import Measured, at_most, bench, in_process, times_peer

CASES = [
    f"{name} batch {batch}, {threads}"
    for name in known_models.MODELS
    for batch in (1, 8)
    for threads in ("one thread", "two threads")
]
EAGER, INDUCTOR, COMPILED, EXECUTABLE = "eager", "inductor", "backend", "from_torch"
LARGEST = 1e-5  # difference to eager, of the largest element
ROUNDS = {1: 7, 8: 3}  # by batch
LINES = 600

if known_models.MISSING:
    print(f"bench_torch: skipped, for there is no {' and no '.join(known_models.MISSING)}")
    bench = lambda *_, **__: lambda function: function  # noqa: E731 - none of it is registered


@bench("backend, {}", peer="PyTorch eager", bars=[times_peer(1.0)], over=CASES)
def backend_eager(case: str):
    return compared(case, COMPILED, EAGER)


@bench("backend, {}", peer="torch.compile, inductor", bars=[times_peer(1.2)], over=CASES)
def backend_inductor(case: str):
    return compared(case, COMPILED, INDUCTOR)


@bench("from_torch, {}", peer="PyTorch eager", bars=[times_peer(1.0)], over=CASES)
def imported_eager(case: str):
    return compared(case, EXECUTABLE, EAGER)


@bench("from_torch, {}", peer="torch.compile, inductor", bars=[times_peer(1.2)], over=CASES)
def imported_inductor(case: str):
    return compared(case, EXECUTABLE, INDUCTOR)


@bench(
    "backend, 10 small ops, a call over the executable's own",
    peer="inductor, a call",
    bars=[at_most(15, "µs")],
)
def overhead():
    times = measured("overhead")
    return Measured(times[COMPILED] - times[EXECUTABLE], times[INDUCTOR], "µs")


@bench(
    "import of GPT-2 124M, 12 layers",
    peer="torch.export, before it",
    bars=[at_most(0.5, "s")],
)
def importing():
    times = measured("import")
    return Measured(times[EXECUTABLE], times["export"], "s")


@bench("text of GPT-2 124M, 12 layers", bars=[at_most(LINES, "lines")])
def lines():
    return Measured(measured("import")["lines"], unit="lines")


def compared(case: str, ours: str, peer: str) -> Measured:
    times = measured(case)
    return Measured(times[ours], times[peer], "ms")


@functools.cache
def measured(case: str) -> dict[str, float]:
    """What a process of this file's measures."""
    return in_process(__file__, case)


# --- the process of a case ------------------------------------------------------------------------


def by_turns(
    calls: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float], times: int = 1,
    settle_s: float = 0.0,
) -> dict[str, float]:  # fmt: skip
    """Median seconds of each call, before each of which it is quiet for `settle_s`."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in list(calls) if turn % 2 == 0 else reversed(list(calls)):
            time.sleep(settle_s)
            start = clock()
            for _ in range(times):
                calls[name]()
            samples[name].append((clock() - start) / times)
    return {name: statistics.median(found) for name, found in samples.items()}


def network(case: str) -> dict[str, float]:
    """Milliseconds of a forward pass. One thread's are CPU time, of all threads together, which is
    what it takes where nothing else runs; two threads' are those of the wall's clock.
    """
    import torch

    what, _, threads = case.partition(", ")
    name, batch = what.split(" batch ")
    count, clock = (1, time.process_time) if threads == "one thread" else (2, time.perf_counter)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    torch.set_num_threads(count)
    model, x = known_models.made(name, int(batch))
    compiled = torch.compile(model, backend="opstep", options={"threads": count})
    inductor = torch.compile(model, backend="inductor")
    executable = executable_of(model, x, count)
    calls = {
        EAGER: lambda: model(x),
        INDUCTOR: lambda: inductor(x),
        COMPILED: lambda: compiled(x),
        EXECUTABLE: lambda: executable(x),
    }
    with torch.no_grad():
        expected = calls[EAGER]()
        for through, call in calls.items():
            found = call()
            difference = known_models.distance(found, expected)
            if not difference <= LARGEST:
                raise ValueError(f"{through}: differs by {difference:.1e} of the largest")
        calls[INDUCTOR]()
        seconds = by_turns(calls, ROUNDS[int(batch)], clock)
    return {through: found * 1e3 for through, found in seconds.items()}


def executable_of(model: Any, x: Any, threads: int) -> Callable[[Any], Any]:
    """A model, imported, on PyTorch's tensors."""
    import torch

    import opstep
    from opstep.api.executable import Executable
    from opstep.api.external import ExternalTensor
    from opstep.api.settings import RunSettings

    program = opstep.from_torch(model, (x,))
    types = [b.type for b in program.graphs["main"].inputs]
    held = Executable(program, "main", types, RunSettings(threads=threads))  # pyright: ignore

    def run(x: Any) -> Any:
        (y,) = held([ExternalTensor.of(x)])
        return torch.from_dlpack(y)

    return run


def ten_ops(x, w):
    for _ in range(5):
        x = (x + w).relu()
    return x


def small() -> dict[str, float]:
    """Microseconds of a call."""
    import torch

    from opstep.api import executable

    made: list[executable.Executable] = []
    init = executable.Executable.__init__
    executable.Executable.__init__ = lambda self, *a, **k: made.append(self) or init(self, *a, **k)
    torch.set_num_threads(1)
    compiled = torch.compile(ten_ops, backend="opstep", options={"threads": 1})
    inductor = torch.compile(ten_ops, backend="inductor")
    x, w, y = (torch.randn(64) for _ in range(3))
    with torch.no_grad():
        if not (torch.equal(compiled(x, w), ten_ops(x, w)) and len(made) == 1):
            raise ValueError("results differ")
        given = [t.data_ptr() for t in (x, w)]
        calls = {
            COMPILED: lambda: compiled(x, w),
            EXECUTABLE: lambda: made[0].run(given, [y.data_ptr()]),
            INDUCTOR: lambda: inductor(x, w),
        }
        for call in calls.values():
            call()
        seconds = by_turns(calls, 51, time.process_time, 500)
    return {through: found * 1e6 for through, found in seconds.items()}


def gpt2() -> dict[str, float]:
    """Seconds of CPU time of the export and of the import, and the lines of the text. The best of
    some: half a gigabyte of memory that a virtual machine has not yet been given is slow at first.
    """
    import torch

    import opstep
    from opstep.runtime.ir.printer import print_module

    opstep.from_torch(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))  # imports, rules
    model, x = known_models.made("GPT-2 124M", 1)
    exports, imports, program = [], [], None
    for _ in range(5):
        start = time.process_time()
        exported = torch.export.export(model, (x,))
        between = time.process_time()
        program = opstep.from_torch(exported)
        exports.append(between - start)
        imports.append(time.process_time() - between)
    assert program is not None
    count = len(print_module(program.module).splitlines())
    return {"export": min(exports), EXECUTABLE: min(imports), "lines": float(count)}


def main(case: str) -> None:
    warnings.filterwarnings("ignore")
    parts = {"overhead": small, "import": gpt2}
    found = parts[case]() if case in parts else network(case)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
