"""1,000 tiny ops: what handing an op to the GPU costs, beside PyTorch, CuPy, JAX, numba and C++."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_runtime import chain
from networks import bound
from rows import Row, at_most, by_turns, group, plain

import opstep

OPS, SIZE = 1000, 1024

CXX = """
#include <chrono>
#include <cstdio>
#include <algorithm>
#include <vector>
__global__ void add(const float *x, const float *y, float *z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}
int main() {
  float *x, *y, *z;
  cudaMalloc(&x, 4096); cudaMalloc(&y, 4096); cudaMalloc(&z, 4096);
  cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  std::vector<double> t;
  for (int r = 0; r < 35; r++) {
    auto a = std::chrono::steady_clock::now();
    for (int k = 0; k < 1000; k++) add<<<4, 256, 0, s>>>(x, y, k % 2 ? x : z, 1024);
    cudaStreamSynchronize(s);
    t.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - a).count());
  }
  std::sort(t.begin() + 5, t.end());
  std::printf("%.9f", t[5 + 15] / 1000);
}
"""


def cxx() -> float:
    """Seconds an op of a C++ loop of `<<<>>>` launches; 0 where there is no nvcc."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "loop.cu"
        source.write_text(CXX)
        try:
            command = ["nvcc", "-O3", "-arch=native", "-o", f"{folder}/loop", str(source)]
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return 0.0
        done = subprocess.run([f"{folder}/loop"], check=True, capture_output=True, text=True)
        return float(done.stdout)


def torch_loop() -> Callable[[], Any]:
    x, b, y = (torch.ones(SIZE, device="cuda") for _ in range(3))

    def run():
        for _ in range(OPS):
            torch.add(x, b, out=y)
        torch.cuda.synchronize()

    return run


def torch_graph() -> Callable[[], Any]:
    x, b = (torch.ones(SIZE, device="cuda") for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x
        for _ in range(OPS):
            y = torch.add(y, b)

    def run(keep=(x, b)):
        graph.replay()
        torch.cuda.synchronize()

    return run


def cupy_loop() -> Callable[[], Any]:
    import cupy

    x, b, y = (cupy.ones(SIZE, cupy.float32) for _ in range(3))

    def run():
        for _ in range(OPS):
            cupy.add(x, b, out=y)
        cupy.cuda.Device().synchronize()

    return run


def jax_loop() -> Callable[[], Any]:
    import jax

    if jax.default_backend() != "gpu":
        raise ImportError("JAX sees no GPU")
    x, b = jax.numpy.ones((2, SIZE), jax.numpy.float32)

    def run():
        y = x
        for _ in range(OPS):
            y = y + b
        y.block_until_ready()

    return run


def numba_loop() -> Callable[[], Any]:
    from numba import cuda

    @cuda.jit
    def add(x, y, z):
        i = cuda.grid(1)
        if i < z.size:
            z[i] = x[i] + y[i]

    x, b, y = (cuda.to_device(np.ones(SIZE, np.float32)) for _ in range(3))
    stream = cuda.stream()

    def run():
        for _ in range(OPS):
            add[4, 256, stream](x, b, y)
        stream.synchronize()

    return run


@group("tiny ops")
def tiny_ops() -> Iterator[Row]:
    program = opstep.loads(chain(OPS, SIZE))
    inputs = {name: np.ones(SIZE, np.float32) for name in ("x0", "b")}
    uncaptured = bound(program, "chain", inputs, streams=1, replays=False, fuse=False)
    captured = bound(program, "chain", inputs, streams=1, fuse=False)
    calls = {"ours": uncaptured, "captured": captured, "PyTorch eager": torch_loop()}
    calls["PyTorch graph replay"] = torch_graph()
    for name, make in (("CuPy", cupy_loop), ("JAX eager", jax_loop), ("raw numba", numba_loop)):
        with suppress(ImportError):
            calls[name] = make()
    us = {name: s / OPS * 1e6 for name, s in by_turns(calls, rounds=21).items()}
    what, unit = "1,000 tiny ops, async, uncaptured: an op", "µs"
    yield at_most(0.8, what, us["ours"], unit, "PyTorch eager", us["PyTorch eager"])
    if found := cxx() * 1e6:
        yield at_most(1.3, what, us["ours"], unit, "C++ <<<>>>", found)
    for name in ("CuPy", "JAX eager", "raw numba"):
        if name in us:
            yield plain(what, us["ours"], unit, name, us[name])
    what = "1,000 tiny ops, captured: an op"
    peer = "PyTorch graph replay"
    yield at_most(1.15, what, us["captured"], unit, peer, us[peer])
