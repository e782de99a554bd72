"""Ops that are bound by arithmetic or memory, one at a time, beside NumPy's and PyTorch's on all
cores.
"""

from __future__ import annotations

import numpy as np
from bench_runtime import bound
from harness import Timed, bench, times_peer

import opstep

RNG = np.random.default_rng(0)
QUIET = {"rounds": 9, "least_s": 0.05, "settle_s": 0.2}  # until the peer's threads sleep

CONVOLUTIONS = {  # images, filters, stride, padding
    "AlexNet conv1": ((1, 224, 224), (96, 1, 11, 11), 4, 0),
    "AlexNet conv2": ((96, 26, 26), (256, 96, 5, 5), 1, 2),
    "AlexNet conv3": ((256, 12, 12), (384, 256, 3, 3), 1, 1),
    "AlexNet conv4": ((384, 12, 12), (384, 384, 3, 3), 1, 1),
    "LeNet conv2": ((6, 4, 4), (16, 6, 3, 3), 1, 1),
    "U-Net down1": ((1, 64, 64), (16, 1, 3, 3), 1, 1),
    "U-Net middle": ((32, 16, 16), (64, 32, 3, 3), 1, 1),
    "U-Net up2": ((96, 32, 32), (32, 96, 3, 3), 1, 1),
    "U-Net up1": ((48, 64, 64), (16, 48, 3, 3), 1, 1),
    "U-Net head": ((16, 64, 64), (2, 16, 1, 1), 1, 0),
}


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def alone(statement: str, expected: np.ndarray, **inputs: np.ndarray):
    """A callable that runs a graph of one statement, whose result is as expected."""
    head = ", ".join(f"{k}: f32{list(v.shape)}" for k, v in inputs.items())
    signature = f"graph main({head}) -> f32{list(expected.shape)}"
    program = opstep.loads(f"{signature} {{\n  y = {statement}\n  return y\n}}\n")
    (y,) = program.run("main", inputs).outputs
    difference = np.abs(y - expected).max() / np.abs(expected).max()
    if difference > 1e-5:
        raise ValueError(f"results differ by {difference:.1e} of the largest")
    return bound(program, "main", inputs)


def chain(a: np.ndarray, b: np.ndarray, length: int) -> Timed:
    """Small products one after the other: what a graph pays an op, without what a run costs."""
    lines = [f"  x{k + 1} = matmul(x{k}, b)" for k in range(length)]
    t = f"f32{list(a.shape)}"
    head = f"graph main(x0: {t}, b: f32{list(b.shape)}) -> {t} {{"
    program = opstep.loads("\n".join([head, *lines, f"  return x{length}", "}", ""]))
    outs = [np.empty_like(a) for _ in range(length)]

    def peer():
        x = a
        for out in outs:
            x = np.matmul(x, b, out=out)

    return Timed(bound(program, "main", {"x0": a, "b": b}), peer, per=length, unit="ms", **QUIET)


@bench(
    "matmul {}",
    peer="NumPy",
    bars=[times_peer(1.1)],
    over=["32", "64", "256", "1024", "1000x3000x200", "1024, a transposed", "1024, b transposed"],
)
def matmul(which: str):
    size, _, transposed = which.partition(", ")
    m, k, n = map(int, size.split("x")) if "x" in size else (int(size),) * 3
    if n <= 64:
        return chain(draw(m, k), draw(k, n) / np.float32(np.sqrt(n)), 32)
    left, right = transposed.startswith("a"), transposed.startswith("b")
    a, b = draw(*((k, m) if left else (m, k))), draw(*((n, k) if right else (k, n)))
    out = np.empty((m, n), np.float32)

    def peer():
        return np.matmul(a.T if left else a, b.T if right else b, out=out)

    flags = f"transpose_a={str(left).lower()}, transpose_b={str(right).lower()}"
    return Timed(alone(f"matmul(a, b, {flags})", peer(), a=a, b=b), peer, unit="ms", **QUIET)


@bench("vector by matrix {}", peer="NumPy", bars=[times_peer(1.1)], over=["4096x4096", "6400x1000"])
def vector(which: str):
    k, n = map(int, which.split("x"))
    x, w = draw(k), draw(k, n)
    return Timed(alone("matmul(x, w)", x @ w, x=x, w=w), lambda: x @ w, unit="ms", **QUIET)


@bench(
    "linear {}",
    peer="PyTorch eager",
    bars=[times_peer(1.2)],
    over=[f"{n}x{k} to {m}" for k, m in ((6400, 4096), (4096, 10), (64, 120)) for n in (1, 32)],
)
def linear(which: str):
    import torch

    rows, _, out = which.partition(" to ")
    n, k = map(int, rows.split("x"))
    x, w, b = draw(n, k), draw(int(out), k), draw(int(out))
    tensors = [torch.from_numpy(t) for t in (x, w, b)]

    @torch.inference_mode()
    def peer():
        return torch.nn.functional.linear(*tensors)

    return Timed(alone("linear(x, w, b)", peer().numpy(), x=x, w=w, b=b), peer, unit="ms", **QUIET)


@bench(
    "{}",
    peer="PyTorch eager",
    bars=[times_peer(1.2)],
    over=[f"{name}, batch {batch}" for name in CONVOLUTIONS for batch in (1, 32)],
)
def convolution(which: str):
    import torch

    name, _, batch = which.partition(", batch ")
    image, filters, stride, padding = CONVOLUTIONS[name]
    x, w, b = draw(int(batch), *image), draw(*filters), draw(filters[0])
    tensors = [torch.from_numpy(t) for t in (x, w, b)]

    @torch.inference_mode()
    def peer():
        return torch.nn.functional.conv2d(*tensors, stride=stride, padding=padding)

    statement = f"conv2d(x, w, b, stride=[{stride}, {stride}], padding=[{padding}, {padding}])"
    return Timed(alone(statement, peer().numpy(), x=x, w=w, b=b), peer, unit="ms", **QUIET)


@bench(
    "max_pool2d {}",
    peer="PyTorch eager",
    bars=[times_peer(1.2)],
    over=["1x96x54x54 by 3", "32x16x64x64 by 2"],
)
def pool(which: str):
    import torch

    shape, _, kernel = which.partition(" by ")
    x = draw(*map(int, shape.split("x")))
    given = torch.from_numpy(x)

    @torch.inference_mode()
    def peer():
        return torch.nn.functional.max_pool2d(given, int(kernel), 2)

    statement = f"max_pool2d(x, kernel=[{kernel}, {kernel}], stride=[2, 2])"
    return Timed(alone(statement, peer().numpy(), x=x), peer, unit="ms", **QUIET)
