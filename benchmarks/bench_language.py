"""From text to plan, and to the text of a gradient: time, memory, growth with the length."""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness import Measured, at_most, bench, times_peer

if TYPE_CHECKING:
    from opstep.api.program import Program

SIZES = (1_000, 10_000, 100_000)
PHASES = ("parse", "verify", "plan")
PEER = "CPython compiling as many assignments"
GROWTH = "the same, a tenth of the statements"


def program_text(statements: int) -> str:
    """A graph of that many statements: eight chains that exchange values now and then."""
    chains = 8
    lines = ["param w: f32[16, 16] = normal(std=0.2)", ""]
    lines += ["graph main(x: f32[N, 16]) -> f32[N, 16] {"]
    names = ["x"] * chains
    for k in range(statements - 1):
        c = k % chains
        a, b = names[c], names[(c + 1 + k // 64) % chains]
        call = (
            f"add({a}, {b})", f"relu({a})", f"linear({a}, w)", f"mul({a}, 0.5)", f"tanh({b})",
        )[(k // chains) % 5]  # fmt: skip
        names[c] = f"v{k}"
        lines.append(f"  v{k} = {call}")
    lines += [f"  return v{statements - 2}", "}", "", "graph loss(x: f32[N, 16]) -> f32[] {"]
    return "\n".join([*lines, "  y = main(x)", "  l = mean(y)", "  return l", "}", ""])


def python_text(statements: int) -> str:
    """As many assignments of calls, as a Python function."""
    lines = ["def main(x, add):"]
    lines += [
        f"    v{k} = add(v{k - 1}, x)" if k else "    v0 = add(x, x)" for k in range(statements)
    ]
    return "\n".join([*lines, f"    return v{statements - 1}", ""])


def phases(statements: int) -> dict[str, float]:
    """Seconds of each phase, and the peak memory of this process in bytes."""
    from opstep.api.program import Program
    from opstep.runtime.ir.parser import parse

    text = program_text(statements)
    gc.collect()
    marks = [time.perf_counter()]
    module = parse(text, "big.opg")
    marks.append(time.perf_counter())
    program = Program(module)
    marks.append(time.perf_counter())
    program.plan("main", symbols={"N": 4}, device="null")
    marks.append(time.perf_counter())
    found = {p: b - a for p, a, b in zip(PHASES, marks, marks[1:], strict=False)}
    found["gradient"] = gradient(program)
    scale = 1 if sys.platform == "darwin" else 1024
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    start = time.perf_counter()
    compile(python_text(statements), "big.py", "exec")
    return found | {"python": time.perf_counter() - start}


def gradient(program: Program) -> float:
    """Seconds that the text of the gradient of ``loss`` takes, by w and x."""
    from opstep.api.gradients import with_gradient
    from opstep.runtime.ir.printer import print_module

    start = time.perf_counter()
    print_module(with_gradient(program, program.graph("loss"), ["w", "x"], "loss_grad"))
    return time.perf_counter() - start


_measured: dict[int, dict[str, float]] = {}


def measured(statements: int) -> dict[str, float]:
    """`phases` in a process of its own, the best of three, kept for the other benchmarks."""
    if statements not in _measured:
        runs = []
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, str(Path(__file__)), str(statements)],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise RuntimeError(done.stderr.strip()[-300:])
            runs.append(json.loads(done.stdout))
        _measured[statements] = {key: min(run[key] for run in runs) for key in runs[0]}
    return _measured[statements]


@bench("parse + verify + plan, {0:,} statements", peer=PEER, over=SIZES[:-1])
def language(statements: int):
    found = measured(statements)
    return Measured(sum(found[p] for p in PHASES), found["python"], "s")


@bench("parse + verify + plan, 100,000 statements", peer=PEER, bars=[at_most(4, "s")])
def language_large():
    return language(SIZES[-1])


@bench("parse + verify + plan, 100,000 statements, memory", bars=[at_most(1024, "MiB")])
def language_memory():
    return Measured(measured(SIZES[-1])["peak"] / 2**20, unit="MiB")


@bench("text of a gradient, {0:,} statements", peer=PEER, over=SIZES[:-1], bars=[at_most(1, "s")])
def gradient_text(statements: int):
    found = measured(statements)
    return Measured(found["gradient"], found["python"], "s")


@bench(
    "{0}, µs a statement, 100,000 of them",
    peer=GROWTH,
    over=(*PHASES, "gradient"),
    bars=[times_peer(1.5)],
)
def linear(phase: str):
    large, small = (measured(n)[phase] / n * 1e6 for n in (SIZES[2], SIZES[1]))
    return Measured(large, small, "µs")


if __name__ == "__main__":
    from opstep.api.program import Program
    from opstep.runtime.ir.parser import parse

    Program(parse(program_text(50))).plan("main", symbols={"N": 4}, device="null")  # imports
    print(json.dumps(phases(int(sys.argv[1]))))
