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
from typing import Any, NamedTuple

import numpy as np

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.kernels.schedules.row_graph import Unfit
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES


class Case(NamedTuple):
    """`own`: operands of x's shape, `params`: operands of one row, or of x's channels."""

    op: str
    own: int
    params: int
    shapes: list[tuple[int, ...]]
    attrs: Callable[[tuple[int, ...]], dict[str, Any]]


def no_attrs(shape):
    return {}


def of_rows(shape):
    return {"shape": shape[1:]}


def of_groups(shape):
    return {"groups": min(32, shape[1])}


ROWS = [(64, 1024), (2048, 1024), (8192, 64), (16, 50257), (65536, 256)]
IMAGES = [(32, 64, 56, 56), (8, 320, 64, 64), (64, 256, 14, 14), (1, 128, 512, 512)]
COLUMNS = [(8, 21, 512, 512), (64, 1000, 64), (16384, 4096)]
NORM = "layer_norm_with_statistics"
CASES = {
    "softmax": Case("softmax", 1, 0, ROWS, no_attrs),
    "log_softmax": Case("log_softmax", 1, 0, ROWS, no_attrs),
    "softmax_grad": Case("softmax_grad", 2, 0, ROWS, no_attrs),
    "log_softmax_grad": Case("log_softmax_grad", 2, 0, ROWS, no_attrs),
    "layer_norm": Case("layer_norm", 1, 2, ROWS, of_rows),
    "layer_norm_grad": Case("layer_norm_grad", 2, 1, ROWS, of_rows),
    "rms_norm": Case("rms_norm", 1, 1, ROWS, of_rows),
    "rms_norm_grad": Case("rms_norm_grad", 2, 1, ROWS, of_rows),
    "group_norm": Case("group_norm", 1, 2, IMAGES, of_groups),
    "instance_norm": Case("group_norm", 1, 0, IMAGES, lambda shape: {"groups": shape[1]}),
    "noted layer_norm": Case(NORM, 1, 2, ROWS, of_rows),
    "noted group_norm": Case("group_norm_with_statistics", 1, 2, IMAGES, of_groups),
    "softmax, columns": Case(
        "softmax", 1, 0, COLUMNS, lambda shape: {"axis": 1 % (len(shape) - 1)}
    ),
    "softmax_grad, columns": Case(
        "softmax_grad", 2, 0, COLUMNS, lambda shape: {"axis": 1 % (len(shape) - 1)}
    ),
}
TINY = {2: [(3, 64), (2, 130), (2, 9001)], 3: [(2, 5, 7)], 4: [(2, 8, 3, 5)]}
CHOICES = ["f32", "bf16", "f64"]
TURNS, CALLS = 25, 10  # calls of a turn, between two events


@contextmanager
def by_graph(name: str) -> Iterator[str]:
    """Within, there is an op of the same graph, without kernels of its own."""
    op: Any = OPS[name]
    signature = op.signature.replace(f"{name}(", f"{name}_by_graph(", 1)
    names = ("infer", "define", "results")
    body = {"signature": signature} | {n: getattr(op, n) for n in names}
    made: Any = type("by_graph", (RowComposite,), body)
    try:
        yield made.name
    finally:
        del OPS[made.name]


def operands(case: Case, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    rng, kind = np.random.default_rng(0), DTYPES[dtype].numpy
    param = shape[1:2] if len(shape) > 2 else shape[1:]
    sizes = [shape] * case.own + [param] * case.params
    return [rng.standard_normal(size, "f4").astype(kind) for size in sizes]


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


def measure(case: Case, shape: tuple[int, ...], dtype: str, simulate: bool) -> str:
    arrays, attrs = operands(case, shape, dtype), case.attrs(shape)
    op: Any = OPS[case.op]
    exact = op.oracle(*(a.astype("f8") for a in arrays), **complete(op, attrs))
    exact = exact[0] if isinstance(exact, tuple) else exact
    with by_graph(case.op) as twin:
        try:
            run = in_simulator if simulate else on_gpu
            (ours, own), (theirs, by_hand) = run([twin, case.op], arrays, attrs)
        except Unfit as unfit:
            return f"not one kernel: {unfit}"
    times = "" if simulate else f"{ours / theirs:6.2f}x {ours:9.2f} of {theirs:9.2f} us  "
    return f"{times}off {off(own, exact):.1e}, by hand {off(by_hand, exact):.1e}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="", help="a regular expression of cases")
    options.add_argument("--dtype", nargs="*", default=["f32", "bf16"], choices=CHOICES)
    options.add_argument("--simulate", action="store_true", help="tiny shapes, without a GPU")
    given = options.parse_args()
    for name, case in CASES.items():
        shapes = TINY[len(case.shapes[0])] if given.simulate else case.shapes
        for dtype in given.dtype if re.search(given.only, name) else ():
            for shape in shapes:
                line = measure(case, shape, dtype, given.simulate)
                print(f"{name:21} {dtype:5} {list(shape)!s:20} {line}", flush=True)


if __name__ == "__main__":
    main()
