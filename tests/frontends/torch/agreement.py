"""Runs a model in PyTorch and as a program of ours, and compares what they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from opstep.frontends.torch.exporting import from_torch

# By element type: how far an element may be off, as a part of the largest one.
TOLERANCES = {
    torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2,
}  # fmt: skip


class Calls(torch.nn.Module):
    """Calls a function with several lists of arguments; what it returns are all results."""

    def __init__(self, function: Callable, calls: Sequence[tuple[tuple, dict]]):
        super().__init__()
        self.function = function
        leaves, self.spec = pytree.tree_flatten(list(calls))
        self.tensors = [a for a in leaves if isinstance(a, torch.Tensor)]
        self.rest = [None if isinstance(a, torch.Tensor) else a for a in leaves]
        self.places = [k for k, a in enumerate(leaves) if isinstance(a, torch.Tensor)]

    def forward(self, *tensors):
        leaves = list(self.rest)
        for k, t in zip(self.places, tensors, strict=True):
            leaves[k] = t
        calls = pytree.tree_unflatten(leaves, self.spec)
        found = [self.function(*args, **kwargs) for args, kwargs in calls]
        return [t for t in pytree.tree_leaves(found) if isinstance(t, torch.Tensor)]


def check(model: torch.nn.Module, *args: torch.Tensor, **options: Any) -> None:
    """Asserts that a program agrees with the model: shapes, element types and values."""
    program = from_torch(model, tuple(a.clone() for a in args), **options)
    main = program.graph("main")
    inputs = {p.name.text: array(a) for p, a in zip(main.inputs, args, strict=True)}
    found = program.run("main", inputs)
    wanted = model(*(a.clone() for a in args))
    wanted = pytree.tree_leaves(wanted)
    assert len(found.values()) == len(wanted)
    for ours, theirs in zip(found.values(), wanted, strict=True):
        compare(np.asarray(ours), theirs.detach())


def array(t: torch.Tensor) -> Any:
    import ml_dtypes

    t = t.detach().resolve_conj()
    if t.dtype is torch.bfloat16:
        return t.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return t.numpy()


def compare(ours: np.ndarray, theirs: torch.Tensor) -> None:
    wanted = array(theirs)
    assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape)
    if not wanted.size:
        return
    if theirs.dtype not in TOLERANCES:
        np.testing.assert_array_equal(ours, wanted)
        return
    a, b = ours.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    np.testing.assert_array_equal(a[np.isinf(a)], b[np.isinf(a)])
    np.testing.assert_array_equal(np.isinf(a), np.isinf(b))
    finite = np.isfinite(b)
    off = np.abs(a[finite] - b[finite])
    limit = TOLERANCES[theirs.dtype] * max(1e-3, np.abs(b[finite]).max(initial=0))
    assert off.max(initial=0) <= limit, f"off by {off.max()} of {np.abs(b[finite]).max()}"
