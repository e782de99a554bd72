"""Softmax, norms and their gradients: the kernel that the schedule for CUDA makes of an op's graph,
beside the hand-written one. Microseconds of each, the fastest of 25 turns taken in alternation, by
CUDA events; how far results are off those in f64.

    PYTHONPATH=.:benchmarks python benchmarks/gpu/row_schedules.py --only "norm" --dtype f32
    PYTHONPATH=.:benchmarks python benchmarks/gpu/row_schedules.py --simulate   # without a GPU
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.kernels.schedules.row_graph import Unfit
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES

# op -> operands of x's shape, operands of one row
OPERANDS = {
    "softmax": (1, 0),
    "log_softmax": (1, 0),
    "softmax_grad": (2, 0),
    "log_softmax_grad": (2, 0),
    "layer_norm": (1, 2),
    "layer_norm_grad": (2, 1),
    "rms_norm": (1, 1),
    "rms_norm_grad": (2, 1),
}
SHAPES = [(64, 1024), (2048, 1024), (8192, 64), (16, 50257), (65536, 256)]
TINY = [(3, 64), (2, 130), (2, 9001)]
CHOICES = ["f32", "bf16", "f64"]
TURNS, CALLS = 25, 10  # calls of a turn, between two events


@contextmanager
def by_graph(name: str) -> Iterator[str]:
    """Within, there is an op of the same graph, without kernels of its own."""
    op: Any = OPS[name]
    signature = op.signature.replace(f"{name}(", f"{name}_by_graph(", 1)
    body = {"signature": signature, "infer": op.infer, "define": op.define}
    made: Any = type("by_graph", (RowComposite,), body)
    try:
        yield made.name
    finally:
        del OPS[made.name]


def operands(name: str, shape: tuple[int, int], dtype: str) -> list[np.ndarray]:
    rng, kind = np.random.default_rng(0), DTYPES[dtype].numpy
    own, of_row = OPERANDS[name]
    sizes = [shape] * own + [shape[1:]] * of_row
    return [rng.standard_normal(size).astype(kind) for size in sizes]


def off(found: np.ndarray, exact: np.ndarray) -> float:
    """The largest difference, relative to the largest number."""
    return float(np.abs(found.astype("f8") - exact).max() / np.abs(exact).max())


def on_gpu(names: list[str], arrays: list[np.ndarray], attrs: dict) -> list[tuple[float, Any]]:
    """(microseconds, result) of each op."""
    import torch
    from gpu_timing import op_work

    def tensor(a: np.ndarray) -> torch.Tensor:
        if a.dtype.itemsize > 2:
            return torch.from_numpy(a).cuda()
        return torch.from_numpy(a.astype("f4")).cuda().to(torch.bfloat16)

    with torch.cuda.stream(torch.cuda.Stream()):
        tensors = [tensor(a) for a in arrays]
        made = [op_work(name, tensors, **attrs) for name in names]
        times = alternated([run for run, _ in made])
        results = [outputs[0].float().cpu().numpy() for _, outputs in made]
    return list(zip(times, results, strict=True))


def alternated(calls: list[Callable[[], None]]) -> list[float]:
    import torch

    found: list[list[float]] = [[] for _ in calls]
    for turn in range(-3, TURNS):
        for k in range(len(calls)) if turn % 2 else reversed(range(len(calls))):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(CALLS):
                calls[k]()
            end.record()
            end.synchronize()
            if turn >= 0:
                found[k].append(begin.elapsed_time(end) / CALLS * 1e3)
    return [min(of_one) for of_one in found]


def in_simulator(names: list[str], arrays: list[np.ndarray], attrs: dict) -> list:
    """The results, without times."""
    from opstep.runtime.device.cuda.simulator.simulator import execute

    ops: list[Any] = [OPS[name] for name in names]
    return [(0.0, execute(op, arrays, complete(op, attrs))[0]) for op in ops]


def measure(name: str, shape: tuple[int, int], dtype: str, simulate: bool) -> str:
    arrays = operands(name, shape, dtype)
    attrs = {} if "softmax" in name else {"shape": shape[1:]}
    op: Any = OPS[name]
    exact = op.oracle(*(a.astype("f8") for a in arrays), **complete(op, attrs))
    with by_graph(name) as twin:
        try:
            run = in_simulator if simulate else on_gpu
            (ours, own), (theirs, by_hand) = run([twin, name], arrays, attrs)
        except Unfit as unfit:
            return f"not one kernel: {unfit}"
    times = "" if simulate else f"{ours / theirs:6.2f}x {ours:9.2f} of {theirs:9.2f} us  "
    return f"{times}off {off(own, exact):.1e}, by hand {off(by_hand, exact):.1e}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="", help="a regular expression of ops")
    options.add_argument("--dtype", nargs="*", default=["f32", "bf16"], choices=CHOICES)
    options.add_argument("--simulate", action="store_true", help="tiny shapes, without a GPU")
    given = options.parse_args()
    for name in OPERANDS:
        for dtype in given.dtype if re.search(given.only, name) else ():
            for shape in TINY if given.simulate else SHAPES:
                line = measure(name, shape, dtype, given.simulate)
                print(f"{name:17} {dtype:5} {list(shape)!s:14} {line}", flush=True)


if __name__ == "__main__":
    main()
