"""Times ops of ours on a GPU over PyTorch's memory, so that both run on the same data."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.device.cuda.device import device, execute
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS, complete

__all__ = ["device", "execute", "op_work", "time_op", "timed"]

_TORCH = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_TORCH |= {"i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8}
_TORCH |= {"u8": torch.uint8, "bool": torch.bool}


class _Like:
    """What an operand is, without its elements."""

    def __init__(self, tensor: torch.Tensor):
        from opstep.runtime.ir.types import DTYPES

        name = next(n for n, t in _TORCH.items() if t is tensor.dtype)
        self.dtype = np.dtype(DTYPES[name].numpy)
        self.shape = tuple(tensor.shape)


def op_work(
    name: str, tensors: list[torch.Tensor], on: Any = None, **attrs: Any
) -> tuple[Callable[[], None], list[torch.Tensor]]:
    """(a call that queues the op on PyTorch's current stream, the tensors that it writes).

    `on`: the device, by default the first GPU.
    """
    op, on = OPS[name], on or device(0)
    step, stored, results = one_step(op, [_Like(t) for t in tensors], complete(op, attrs))
    launches, size = on.prepare(step, (*stored, *results))
    outputs = [torch.empty(t.shape, dtype=_TORCH[t.dtype.name], device="cuda") for t in results]  # pyright: ignore
    scratch = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
    addresses = [t.data_ptr() for t in tensors] + [0] * (len(stored) - len(tensors))
    addresses += [t.data_ptr() for t in outputs]
    work = on.capture(on.bind(launches, addresses, scratch.data_ptr()))

    def run(keep=(tensors, outputs, scratch)) -> None:
        work(torch.cuda.current_stream().cuda_stream)

    return run, outputs


def timed(run: Callable[[], Any], repeats: int = 20, warmup: int = 3) -> float:
    """Median seconds of a call on the GPU, by events."""
    for _ in range(warmup):
        run()
    found = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return median(found)


def time_op(
    name: str, tensors: list[torch.Tensor], repeats: int = 20, **attrs: Any
) -> tuple[float, list[torch.Tensor]]:
    """(median seconds, results) of an op on PyTorch's CUDA tensors; they are not written."""
    run, outputs = op_work(name, tensors, **attrs)
    with torch.cuda.stream(torch.cuda.Stream()):
        seconds = timed(run, repeats)
    torch.cuda.synchronize()
    return seconds, outputs
