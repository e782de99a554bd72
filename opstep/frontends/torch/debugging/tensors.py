"""Tensors of a script as views show them: parts, figures and histograms, computed where the tensor
is. No more is moved than what is seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from opstep.frontends.torch.debugging.values import finite_of
from opstep.frontends.torch.dims import DTYPES
from opstep.frontends.torch.eager.tensors import PLAIN
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import TensorType
from opstep.runtime.statistics import BINS, LOWEST, Statistics, together

_CHUNK = 1 << 22  # elements that are looked at in one go: the working memory is some 100 MB
_HUGE = 2.0**500
_MANTISSA, _BIAS = 52, 1023  # of f64
_NO_ELEMENTS = Statistics(
    0, None, None, None, None, None, None, 0, 0, 0, 0, 0, None, (0,) * BINS
)  # fmt: skip
_WIDER = {  # that hold every value of types that views do not have
    **{
        getattr(torch, name): torch.float32
        for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
        if hasattr(torch, name)
    },
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}


class ScriptTensor:
    """A tensor, on any device, as `opstep.editors.views` asks for one."""

    def __init__(self, t: torch.Tensor):
        """Raises `InputError` with what to look at instead, where it is no plain array."""
        t = _plain(t.detach())
        if t.is_cuda:  # this thread's work does not wait for that of the script's streams
            torch.cuda.synchronize(t.device)
        self._t = t
        self.stored = t.dtype
        self.dtype = _WIDER.get(t.dtype, t.dtype)
        self.type = TensorType(DTYPES[self.dtype], tuple(t.shape))

    @property
    def text(self) -> str:
        """Its type, with the element type that it is stored in."""
        if self.stored is self.dtype:
            return str(self.type)
        return f"{str(self.stored).removeprefix('torch.')}{list(self._t.shape)}"

    def array(self) -> np.ndarray:
        return self.part(())

    def part(self, index: Any) -> np.ndarray:
        found = self._t[index] if index else self._t
        host = found.to(self.dtype).contiguous().cpu()
        if host.dtype is torch.bfloat16:
            return host.view(torch.int16).numpy().view(self.type.dtype.numpy)
        return host.numpy()

    def statistics(self) -> Statistics:
        tiny = torch.finfo(self.stored).tiny if self.stored.is_floating_point else 0.0
        parts = [_statistics(piece.to(self.dtype), tiny) for piece in _pieces(self._t)]
        return together(parts) if parts else _NO_ELEMENTS

    def counts(self, bins: int, low: float, high: float) -> np.ndarray:
        """Of bins of equal width, the finite elements."""
        total = torch.zeros(bins, dtype=torch.float64)
        for piece in _pieces(self._t):
            wide = piece.to(torch.float64)
            finite = wide.isfinite()
            wide = wide if finite.all() else wide[finite]
            total += torch.histc(wide, bins, low, high).cpu()
        return total.numpy().astype(np.int64)

    def places(self, kind: str) -> torch.Tensor:
        """Of elements that are not finite, i64[n, rank]. `kind`: nan, posinf, neginf or any."""
        wide = self._t.to(self.dtype)
        mask = ~wide.isfinite() if kind == "any" else getattr(torch, "is" + kind)(wide)
        return mask.nonzero()


def _plain(t: torch.Tensor) -> torch.Tensor:
    name = type(t).__name__
    if t.is_meta or name == "FakeTensor":
        raise InputError(f"{list(t.shape)} on meta: it has a shape and no elements")
    if is_traceable_wrapper_subclass(t) or torch._C._functorch.is_functorch_wrapped_tensor(t):  # pyright: ignore
        hint = ": look at its to_local()" if hasattr(t, "to_local") else ""
        raise InputError(f"a {name} has no elements of its own{hint}")
    if type(t) not in PLAIN:
        t = t.as_subclass(torch.Tensor)
    if t.layout is not torch.strided:
        layout = str(t.layout).removeprefix("torch.").removeprefix("_")
        raise InputError(f"it is {layout}: look at its to_dense(), or its values()")
    if t.is_quantized:
        raise InputError("it is quantized: look at its dequantize(), or its int_repr()")
    if t.is_complex():
        raise InputError("it is complex: look at its real, its imag or its abs()")
    if t.dtype not in DTYPES and t.dtype not in _WIDER:
        raise InputError(f"elements of {t.dtype} have no view: look at its double()")
    return t.resolve_neg()


def _pieces(t: torch.Tensor) -> Iterator[torch.Tensor]:
    """All elements, in one-dimensional tensors of at most `_CHUNK`; copied only where they are
    not contiguous.
    """
    if t.is_contiguous() or t.numel() <= _CHUNK:
        yield from t.reshape(-1).split(_CHUNK) if t.numel() else ()
        return
    rows = max(1, _CHUNK * t.shape[0] // t.numel())
    for part in t.split(rows) if rows > 1 or t.dim() == 1 else t.unbind():
        yield from _pieces(part)


def _statistics(t: torch.Tensor, tiny: float) -> Statistics:
    """Of elements in one dimension, in f64."""
    count = t.numel()
    t, nan, up, down = finite_of(t)
    if not t.numel():
        return Statistics(
            count, None, None, None, None, None, None, nan, up, down, 0, 0, None, (0,) * BINS
        )
    low, high = (x.item() for x in t.aminmax())
    largest = max(abs(low), abs(high))
    wide = t.to(torch.float64, copy=True)  # is written below
    size = wide.abs()
    zero = t.numel() - int(size.count_nonzero())
    subnormal = int((size < tiny).sum()) - zero if tiny else 0
    exponents = size.view(torch.int64).bitwise_right_shift_(_MANTISSA).sub_(_BIAS + LOWEST)
    bins = torch.bincount(exponents.clamp_(0, BINS - 1), minlength=BINS)
    bins[0] -= zero
    scale = _HUGE if largest > _HUGE else 1.0  # f64 cannot hold sums and squares of these
    mean = wide.div_(scale).mean()
    std, mean = wide.sub_(mean).square_().mean().sqrt().item(), mean.item()
    norm = math.sqrt(t.numel()) * math.hypot(std, mean)
    return Statistics(
        count, low, high, mean * scale, std * scale, norm * scale, largest, nan, up, down, zero,
        subnormal, None, tuple(bins.tolist()),
    )  # fmt: skip
