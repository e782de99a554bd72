"""Kernels of row ops in this checkout beside those in another one, one core each.

    taskset -c 1 python benchmarks/row_schedule.py OTHER [--only layer_norm] [--dtype f32] [--avx2]

Each checkout has a process of its own; they take turns, launch by launch. A table gives the fastest
of ROUNDS, this checkout's time over the other's. With --avx2 both compile for vectors of 256 bits.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROUNDS = 25
AVX2 = "sse2 sse3 ssse3 sse4.1 sse4.2 popcnt cx16 avx avx2 bmi bmi2 f16c fma lzcnt movbe"
SHAPES = ((64, 1024), (2048, 1024), (8192, 64), (16, 50257))
# op -> operands: x of the rows, p of one row, s of one number a row; then attributes
OPS = {
    "softmax": ("x", {}),
    "log_softmax": ("x", {}),
    "softmax_grad": ("yx", {}),
    "log_softmax_grad": ("lx", {}),
    "layer_norm": ("xpp", {"shape": None}),
    "layer_norm_plain": ("x", {"shape": None}),
    "layer_norm_grad": ("xxp", {"shape": None}),
    "layer_norm_with_statistics": ("xpp", {"shape": None}),
    "layer_norm_affine_grad": ("xxp", {"shape": None}),
    "rms_norm": ("xp", {"shape": None}),
    "rms_norm_grad": ("xxp", {"shape": None}),
    "group_norm": ("xpp", {"groups": 4}),
    "sum": ("x", {"axes": (1,)}),
}
# the same rows as columns of memory
COLUMNS = ("softmax", "log_softmax", "softmax_grad", "log_softmax_grad", "sum")
OPS |= {f"{name}_columns": (OPS[name][0], {"turned": True}) for name in COLUMNS}


def call_of(name: str, dtype_name: str, shape: tuple[int, ...]):
    """A function that launches the op once, and its result."""
    import numpy as np

    import opstep.kernels  # noqa: F401 - registers the ops
    from opstep.runtime.ir.types import DTYPES

    operands, attrs = OPS[name]
    of, dtype = name.removesuffix("_plain").removesuffix("_columns"), DTYPES[dtype_name]
    if "turned" in attrs:
        shape = shape[::-1]
        attrs = {"axes": (0,)} if of == "sum" else {"axis": 0}
    sizes = {"x": shape, "p": shape[1:], "y": shape, "l": shape}
    if name == "group_norm":  # planes of a sixteenth of a row
        sizes = {"x": (shape[0], 16, shape[1] // 16), "p": (16,)}
    attrs = {k: shape[1:] if v is None else v for k, v in attrs.items()}
    rng = np.random.default_rng(0)
    arrays = [_drawn(rng, k, sizes[k]).astype(dtype.numpy) for k in operands]
    return bound_call(of, arrays, attrs)


def bound_call(name: str, arrays: list[Any], attrs: dict[str, Any]):
    """A function that launches the op once on these arrays, and its first result."""
    import numpy as np

    from opstep.runtime.device.cpu.lowering import Lowering
    from opstep.runtime.ir.op import OPS as DECLARED
    from opstep.runtime.ir.op import complete, resolve
    from opstep.runtime.ir.types import TensorType, dtype_of
    from opstep.runtime.plan.plan import Step

    op, statement, count = DECLARED[name], None, len(arrays)  # kernels do not ask where they stand
    attrs = complete(op, attrs)
    types = [TensorType(dtype_of(a.dtype), a.shape) for a in arrays]
    resolved = resolve(op, types, attrs)
    results: Any = resolved.results
    arrays = arrays + [np.zeros(t.shape, t.dtype.numpy) for t in results]
    absent = (None,) * (len(resolved.operands) - count)
    step = Step(op, (*range(count), *absent), (), resolved.operands, attrs, 0, statement)  # pyright: ignore
    prepared, size = Lowering(step, (*types, *absent, *resolved.results), 1).prepared()
    memory = np.zeros(size + 64, np.uint8)
    workspace = -(-memory.ctypes.data // 64) * 64
    addresses = [a.ctypes.data for a in arrays[:count]] + [0] * len(absent)
    addresses += [a.ctypes.data for a in arrays[count:]]
    bound: list[Any] = [p.bound(addresses, workspace) for p in prepared]
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)
    rows = [(kind(b.row[0]), *b.row[1:3]) for b in bound]
    slots = (ctypes.c_int64 * 4)()
    at = ctypes.addressof(slots)

    def call(kept=(arrays, memory, slots, bound)):
        for function, words, units in rows:
            function(at, at + 16, words, 0, units, 0)

    return call, arrays[count]


def _drawn(rng, kind: str, shape):
    import numpy as np

    x = rng.standard_normal(shape, np.float32)
    e = np.exp(x)
    return {"y": e / e.sum(-1, keepdims=True), "l": np.log(e / e.sum(-1, keepdims=True))}.get(
        kind, x
    )


def work(avx2: bool) -> None:
    """Times what standard input names: a line sets up, an empty line runs."""
    if avx2:
        from opstep.runtime.device.cpu import processor

        features = ("+" + ",+".join(AVX2.split())) + ",-avx512f"
        processor.this = lambda: processor.Processor("x86-64-v3", features)
    call: Any = None
    for line in sys.stdin:
        if line.strip():
            name, dtype, shape = json.loads(line)
            call, _ = call_of(name, dtype, tuple(shape))
            call()
            print("ready", flush=True)
        else:
            begin = time.perf_counter_ns()
            call()
            print(time.perf_counter_ns() - begin, flush=True)


class Worker:
    def __init__(self, checkout: Path, *options: str):
        command = [sys.executable, str(Path(__file__).resolve()), "--work", *options]
        pipe = subprocess.PIPE
        environment = {"PYTHONPATH": str(checkout), **_environment()}
        self.process: Any = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=checkout
        )

    def ask(self, line: str) -> str:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def _environment() -> dict[str, str]:
    import os

    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("other", nargs="?", type=Path)
    parser.add_argument("--only", action="append")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--avx2", action="store_true")
    parser.add_argument("--work", action="store_true")
    options = parser.parse_args()
    if options.work:
        work(options.avx2)
        return
    here = Path(__file__).resolve().parents[1]
    passed = ["--avx2"] * options.avx2
    workers = [Worker(here, *passed), Worker(options.other, *passed)]
    for name in options.only or OPS:
        ratios = []
        for shape in SHAPES:
            if name == "group_norm" and shape[1] % 16:
                continue
            for worker in workers:
                if worker.ask(json.dumps([name, options.dtype, shape])) != "ready":
                    raise SystemExit(f"{name} {shape} failed")
            best = [math.inf, math.inf]
            for _ in range(ROUNDS):
                for k, worker in enumerate(workers):
                    best[k] = min(best[k], int(worker.ask("")))
            ratios.append((best[0] / best[1], best[0] / 1e3))
        mean = math.exp(sum(math.log(r) for r, _ in ratios) / len(ratios))
        cells = "  ".join(f"{r:5.2f} ({us:8.1f} us)" for r, us in ratios)
        print(f"{name:28} {cells}   mean {mean:.2f}", flush=True)
    for worker in workers:
        worker.process.stdin.close()


if __name__ == "__main__":
    main()
