"""Ops that the package does not have, written by `define` alone, beside PyTorch's.

    python benchmarks/defined_ops.py [--device cuda]

The fastest of ROUNDS calls, taken by turns: kernels alone for ours; on the CPU one thread of
PyTorch, on a GPU events around what it launches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from row_schedule import bound_call

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.kernels.schedules.rows import RowComposite

ROUNDS = 25
SHAPES = ((64, 1024), (2048, 1024), (8192, 64), (16, 50257), (4096, 4096))


class normalize(RowComposite):
    """x divided by its Euclidean norm along `axis`, or by `epsilon` where that is larger."""

    signature = "normalize(x: F, *, axis: int = -1, epsilon: float = 1e-12)"

    def define(g, x, *, axis, epsilon):
        norm = g.sqrt(g.sum(g.square(x), axes=[axis], keepdims=True))
        return g.div(x, g.maximum(norm, epsilon))


class softmin(RowComposite):
    """exp(-x) divided by its sum along `axis`."""

    signature = "softmin(x: F, *, axis: int = -1)"

    def define(g, x, *, axis):
        e = g.exp(g.sub(g.min(x, axes=[axis], keepdims=True), x))
        return g.mul(e, g.reciprocal(g.sum(e, axes=[axis], keepdims=True)))


class cosine_similarity(RowComposite):
    """The cosine of the angle between rows of x and of y."""

    signature = "cosine_similarity(x: F, y: F, *, epsilon: float = 1e-8)"

    def define(g, x, y, *, epsilon):
        products = (g.mul(x, y), g.square(x), g.square(y))
        both, xx, yy = (g.sum(p, axes=[-1]) for p in products)
        lengths = g.mul(g.maximum(g.sqrt(xx), epsilon), g.maximum(g.sqrt(yy), epsilon))
        return g.div(both, lengths)


PEERS: dict[str, tuple[int, Callable[..., torch.Tensor]]] = {
    "normalize": (1, lambda x: F.normalize(x, dim=-1)),
    "softmin": (1, lambda x: F.softmin(x, dim=-1)),
    "cosine_similarity": (2, lambda x, y: F.cosine_similarity(x, y, dim=-1)),
}


def on_cpu(name: str, arrays: list[np.ndarray]) -> tuple[list[Callable[[], float]], float]:
    """Two calls, each of which gives its seconds, and how far their results differ."""
    call, result = bound_call(name, arrays, {})
    tensors = [torch.from_numpy(a) for a in arrays]
    peer = PEERS[name][1]
    call()
    off = float(np.abs(result - peer(*tensors).numpy()).max())

    def seconds(of: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        of()
        return time.perf_counter() - begin

    return [lambda: seconds(call), lambda: seconds(lambda: peer(*tensors))], off


def on_gpu(name: str, arrays: list[np.ndarray]) -> tuple[list[Callable[[], float]], float]:
    from gpu_timing import op_work, timed

    tensors = [torch.from_numpy(a).cuda() for a in arrays]
    run, (result,) = op_work(name, tensors)
    peer = PEERS[name][1]
    run()
    off = float((result - peer(*tensors)).abs().max())
    return [lambda: timed(run, 1, 0), lambda: timed(lambda: peer(*tensors), 1, 0)], off


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    device = options.parse_args().device
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    for name, (count, _) in PEERS.items():
        for shape in SHAPES:
            arrays = [random.standard_normal(shape, np.float32) for _ in range(count)]
            with torch.no_grad():
                calls, off = (on_cpu if device == "cpu" else on_gpu)(name, arrays)
                best = [
                    min(found)
                    for found in zip(*[[c() for c in calls] for _ in range(ROUNDS)], strict=True)
                ]
            ratio = best[0] / best[1]
            times = "  ".join(f"{seconds * 1e6:10.1f} us" for seconds in best)
            print(f"{name:18} {shape!s:14} {times}  {ratio:5.2f}x  off {off:.1e}", flush=True)


if __name__ == "__main__":
    main()
