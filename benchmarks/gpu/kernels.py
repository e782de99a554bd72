"""Kernels on large tensors: share of the measured copy bandwidth, products beside cuBLAS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from gpu_timing import device, op_work, timed
from rows import Row, at_least, at_most, group, plain

from opstep.api.devices import Setup
from opstep.runtime.ir.types import DTYPES, TensorType
from opstep.runtime.statistics import WORDS, step_for

SIZE = 1 << 28
ROW = 4096
DTYPE = {"f32": torch.float32, "bf16": torch.bfloat16}


def copy_rate(x: torch.Tensor) -> float:
    """GB/s of PyTorch's copy of the tensor, bytes read and written."""
    y = torch.empty_like(x)
    return 2 * x.nbytes / timed(lambda: y.copy_(x)) / 1e9


def memory_bound(rows: torch.Tensor) -> dict[str, tuple[list, dict, Callable[[], Any], float]]:
    """For each op: operands, attributes, PyTorch's call, tensors of this size read or written."""
    flat, n = rows.view(-1), rows.shape[1]
    w = torch.ones(n, device="cuda", dtype=rows.dtype)
    return {
        "relu": ([flat], {}, lambda: torch.relu(flat), 2),
        "add": ([flat, flat], {}, lambda: torch.add(flat, flat), 2),
        "exp": ([flat], {}, lambda: torch.exp(flat), 2),
        "gelu": ([flat], {}, lambda: F.gelu(flat), 2),
        "sum": ([flat], {}, lambda: torch.sum(flat), 1),
        "max": ([rows], {"axes": (1,)}, lambda: torch.amax(rows, 1), 1),
        "mean": ([rows], {"axes": (0,)}, lambda: torch.mean(rows, 0), 1),
        "softmax": ([rows], {}, lambda: torch.softmax(rows, 1), 2),
        "layer_norm": (
            [rows, w, w], {"shape": (n,)}, lambda: F.layer_norm(rows, (n,), w, w, 1e-5), 2,
        ),
    }  # fmt: skip


@group("memory-bound ops")
def memory_bound_ops() -> Iterator[Row]:
    for name, dtype in DTYPE.items():
        rows = torch.randn(SIZE // ROW, ROW, device="cuda").to(dtype)
        copied = copy_rate(rows)
        for op, (operands, attrs, theirs, passes) in memory_bound(rows).items():
            what = f"{op}, {name}, 2^28 elements"
            try:
                ours, _ = op_work(op, operands, **attrs)
                with torch.cuda.stream(torch.cuda.Stream()):
                    rate = passes * rows.nbytes / timed(ours) / 1e9
                    peer = passes * rows.nbytes / timed(theirs) / 1e9
            except Exception as error:  # the other rows are worth having
                yield Row(what, 0, "GB/s", reached=False, error=f"{type(error).__name__}: {error}")
                continue
            yield at_least(0.92, what, rate, "GB/s", "copy", copied)
            yield at_least(1 / 1.05, what, rate, "GB/s", "PyTorch", peer)
            torch.cuda.empty_cache()


@group("other peers of memory-bound ops")
def other_peers() -> Iterator[Row]:
    import cupy
    import triton
    import triton.language as tl

    x = torch.randn(SIZE, device="cuda")
    y = torch.empty_like(x)
    ours, _ = op_work("relu", [x])
    first, second = cupy.from_dlpack(x), cupy.from_dlpack(y)
    peers = {"CuPy": lambda: cupy.maximum(first, 0, out=second)}

    @triton.jit
    def relu(x, y, block: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        tl.store(y + at, tl.maximum(tl.load(x + at), 0.0))

    peers["Triton"] = lambda: relu[(SIZE // 4096,)](x, y, 4096)
    rate = 2 * x.nbytes / timed(ours) / 1e9
    for name, call in peers.items():
        stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with stream:
            peer = 2 * x.nbytes / timed(call) / 1e9
        yield plain("relu, f32, 2^28 elements", rate, "GB/s", name, peer)


@group("losses and pooling")
def losses_and_pooling() -> Iterator[Row]:
    """What a step of training has of them: scores of a vocabulary, windows of images."""
    for name, dtype in DTYPE.items():
        yield _cross_entropy(name, torch.randn(8192, 50257, device="cuda").to(dtype))
    for shape, k, padding in (((16, 64, 224, 224), 2, 0), ((32, 64, 112, 112), 3, 1)):
        yield _max_pool_gradient(torch.randn(shape, device="cuda"), k, padding)


def _cross_entropy(name: str, scores: torch.Tensor) -> Row:
    labels = torch.randint(0, scores.shape[1], scores.shape[:1], device="cuda")
    gy, leaf = scores.new_ones(()), scores.clone().requires_grad_()
    forward, _ = op_work("softmax_cross_entropy", [scores, labels])
    backward, (gradient,) = op_work("softmax_cross_entropy_grad", [scores, labels, gy])

    def theirs() -> None:
        leaf.grad = None
        F.cross_entropy(leaf, labels).backward()

    theirs()
    backward()
    torch.testing.assert_close(gradient, leaf.grad, rtol=1e-2, atol=1e-6)
    ours = (timed(forward) + timed(backward)) * 1e3
    what = f"softmax_cross_entropy and its gradient, {name}, 8192 rows of 50257"
    return at_most(1.0, what, ours, "ms", "PyTorch", timed(theirs) * 1e3)


def _max_pool_gradient(x: torch.Tensor, k: int, padding: int) -> Row:
    """PyTorch has kept where the largest elements are, ours looks for them again."""
    window = [k, k], [2, 2], [padding, padding], [1, 1], False
    y, places = torch.ops.aten.max_pool2d_with_indices(x, *window)
    gy = torch.randn_like(y)
    attrs = {"kernel": (k, k), "stride": (2, 2), "padding": (padding, padding)}
    ours, (gx,) = op_work("max_pool2d_grad", [gy, x], **attrs)

    def theirs() -> torch.Tensor:
        return torch.ops.aten.max_pool2d_with_indices_backward(gy, x, *window, places)

    ours()
    torch.testing.assert_close(gx, theirs())
    what = f"max_pool2d_grad, f32, {'x'.join(map(str, x.shape))}, {k}x{k}/2"
    return at_most(1.0, what, timed(ours) * 1e3, "ms", "PyTorch", timed(theirs) * 1e3)


@group("statistics")
def statistics() -> Iterator[Row]:
    x = torch.randn(SIZE, device="cuda")
    copied = copy_rate(x)
    step, types = step_for(TensorType(DTYPES["f32"], (SIZE,)), False)
    on = device(0)
    launches, size = on.prepare(step, types)
    record = torch.zeros(WORDS, dtype=torch.int64, device="cuda")
    enabled = torch.ones((), dtype=torch.int64, device="cuda")
    scratch = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
    addresses = [x.data_ptr(), enabled.data_ptr(), record.data_ptr()]
    work = on.capture(on.bind(launches, addresses, scratch.data_ptr()))

    def same_figures():
        bits = x.view(torch.int32)
        exponents = (bits >> 23) & 255
        found = [x.min(), x.max(), x.mean(), x.std(), x.norm(), x.abs().max()]
        found += [x.isnan().sum(), x.isposinf().sum(), x.isneginf().sum(), (x == 0).sum()]
        found += [((exponents == 0) & (bits << 1 != 0)).sum(), (bits == 0x7FC05EED).sum()]
        return [*found, torch.histc(exponents.float(), 256, 0, 256)]

    ms = timed(lambda: work(torch.cuda.current_stream().cuda_stream)) * 1e3
    torch_ms = timed(same_figures, repeats=5) * 1e3
    what = "statistics of one tensor, f32, 2^28 elements"
    yield at_least(0.88, what, x.nbytes / ms / 1e6, "GB/s", "copy", copied)
    faster = Row(what, ms, "ms", "the same figures by PyTorch", torch_ms)
    yield faster._replace(bar="≥ 6x faster", reached=torch_ms >= 6 * ms)


def product(n: int, name: str, kernels: str) -> tuple[float, float]:
    """TFLOP/s of ours and of cuBLAS, by turns."""
    a, b = (torch.randn(n, n, device="cuda").to(DTYPE[name]) for _ in range(2))
    ours, _ = op_work("matmul", [a, b], on=chosen(kernels))
    c = torch.empty_like(a)
    seconds = [timed(ours), timed(lambda: torch.matmul(a, b, out=c))]
    again = [timed(ours), timed(lambda: torch.matmul(a, b, out=c))]
    first, second = (2 * n**3 / ((s + t) / 2) / 1e12 for s, t in zip(seconds, again, strict=True))
    return first, second


def chosen(kernels: str):
    """The GPU with this choice of kernels."""
    from opstep.api.devices import device_named

    return device_named("cuda", Setup(None, kernels, kernels == "auto"))


@group("products")
def products() -> Iterator[Row]:
    torch.backends.cuda.matmul.allow_tf32 = False
    bars = {("f32", "numba"): 0.6, ("bf16", "numba"): 0.5, ("bf16", "auto"): 0.97}
    for (name, kernels), share in bars.items():
        ours, peer = product(4096, name, kernels)
        what = f"{name} matmul 4096^3, --kernels {kernels}"
        yield at_least(share, what, ours, "TFLOP/s", "cuBLAS (torch.matmul)", peer)
