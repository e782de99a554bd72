"""Tensors in a debugger's Variables: a line of figures, and children. On the script's thread, and
as if nothing had looked: no mode of the script's sees it, and nothing is raised.
"""

from __future__ import annotations

from typing import Any

import torch

from opstep.frontends.torch.debugging import watching
from opstep.frontends.torch.dims import DTYPES
from opstep.runtime.expressions.text import figures_text, number_text
from opstep.runtime.ir.types import TensorType
from opstep.runtime.statistics import Statistics

MOST_ELEMENTS = 1 << 22  # that figures are computed of, in some 50 ms
MOST_ITEMS = 20


def text_of(t: torch.Tensor) -> str:
    """``f32[8, 128]  7 NaN of 1,024, mean of the rest 0.01  …``; on a GPU the figures alone are
    moved. Of a large tensor they are those of its first elements, and the text says so.
    """
    try:
        with watching.unseen():
            return _text(t)
    except Exception as error:  # a half-made subclass, a device that failed
        return f"<{type(t).__name__}: {error}>"


def children_of(t: torch.Tensor) -> dict[str, Any]:
    """Attributes, and the first items."""
    names = ["shape", "dtype", "device", "requires_grad"]
    names += ["grad"] if t.is_leaf and t.requires_grad else ["grad_fn"] * t.requires_grad
    found = {name: getattr(t, name) for name in names}
    try:
        with watching.unseen():
            items = list(t.detach()[:MOST_ITEMS]) if t.dim() else []
    except Exception:  # sparse, nested, on meta
        items = []
    return found | {f"[{k}]": item for k, item in enumerate(items)}


def _text(t: torch.Tensor) -> str:
    device = "" if t.device.type == "cpu" else f"  on {t.device}"
    dtype = DTYPES.get(t.dtype)
    if dtype is None or t.layout is not torch.strided or t.is_meta:
        layout = "" if t.layout is torch.strided else f" {t.layout}".replace("torch.", "")
        return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}{layout}{device}"
    head = f"{TensorType(dtype, tuple(t.shape))}"
    if not t.dim():
        number = t.item()
        text = str(number) if number != number else number_text(dtype.numpy.type(number))
        return f"{text}  {head}{device}"
    flat = t.detach()
    if t.numel() > MOST_ELEMENTS:
        rows = max(MOST_ELEMENTS * t.shape[0] // t.numel(), 1)
        flat = flat[:rows]
    part = f"  (of the first {len(flat):,} of {len(t):,})" if len(flat) < len(t) else ""
    figures = figures_text(TensorType(dtype, (flat.numel(),)), statistics_of(flat))
    return f"{head}{device}  {figures}{part}"


def finite_of(t: torch.Tensor) -> tuple[torch.Tensor, int, int, int]:
    """The finite elements, and counts of NaN, inf and -inf; `t` itself where all are finite."""
    if not t.is_floating_point() or (finite := t.isfinite()).all():
        return t, 0, 0, 0
    nan, up, down = t.isnan(), t == torch.inf, t == -torch.inf
    return t[finite], int(nan.sum()), int(up.sum()), int(down.sum())


def statistics_of(t: torch.Tensor) -> Statistics:
    """Mean, deviation and extremes of what is finite, and counts of what is not; the others that
    `Statistics` has are not computed. Of a tensor on any device.
    """
    count = t.numel()
    t, nan, up, down = finite_of(t)
    low = high = mean = std = None
    if t.numel():
        low, high = (x.item() for x in t.aminmax())
        wide = t.double()
        mean, std = wide.mean().item(), wide.std(correction=0).item()
    return Statistics(count, low, high, mean, std, None, None, nan, up, down, 0, 0, None, ())
