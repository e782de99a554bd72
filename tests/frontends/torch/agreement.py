"""Runs a model in PyTorch and as a program of ours, and compares what they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from opstep.frontends.torch.importing import from_torch

# By element type: how far an element may be off, as a part of the largest one.
TOLERANCES = {
    torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2,
}  # fmt: skip


class Call(NamedTuple):
    name: str
    function: Callable
    args: tuple
    kwargs: dict[str, Any]


class Calls(torch.nn.Module):
    """Calls functions; what it returns are all results. `tensors` are its inputs."""

    def __init__(self, calls: Sequence[Call]):
        super().__init__()
        self.calls = calls
        leaves, self.spec = pytree.tree_flatten([(c.args, c.kwargs) for c in calls])
        self.tensors = [a for a in leaves if isinstance(a, torch.Tensor)]
        self.rest = [None if isinstance(a, torch.Tensor) else a for a in leaves]
        self.places = [k for k, a in enumerate(leaves) if isinstance(a, torch.Tensor)]
        self.labels: list[str] = []  # of the results of the last call

    def forward(self, *tensors):
        leaves = list(self.rest)
        for k, t in zip(self.places, tensors, strict=True):
            leaves[k] = t
        self.labels, results = [], []
        arguments = pytree.tree_unflatten(leaves, self.spec)
        for k, (call, (args, kwargs)) in enumerate(zip(self.calls, arguments, strict=True)):
            for found in pytree.tree_leaves(call.function(*args, **kwargs)):
                if isinstance(found, torch.Tensor):
                    self.labels.append(f"{call.name}, call {k}")
                    results.append(found)
        return results


def check(
    model: torch.nn.Module, *args: torch.Tensor, also: Sequence[tuple] = (), **options: Any
) -> None:
    """Asserts that a program agrees with the model: shapes, element types and values.

    `also`: other inputs for the same program.
    """
    program = from_torch(model, tuple(a.clone() for a in args), **options)
    names = [p.name.text for p in program.graph("main").inputs]
    for given in (args, *also):
        found = program.run("main", dict(zip(names, map(array, given), strict=True)))
        wanted = pytree.tree_leaves(model(*(a.clone() for a in given)))
        results = list(found.values())[: len(wanted)]  # behind them: inputs that changed
        labels = model.labels if isinstance(model, Calls) else range(len(wanted))
        for label, ours, theirs in zip(labels, results, wanted, strict=True):
            try:
                compare(np.asarray(ours), theirs.detach())
            except AssertionError as error:
                raise AssertionError(f"{label}: {error}") from None


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
    limit = TOLERANCES[theirs.dtype] * max(0.01, np.abs(b[finite]).max(initial=0))
    assert off.max(initial=0) <= limit, f"off by {off.max()} of {np.abs(b[finite]).max()}"


def called(graph: Any) -> list[str]:
    """The ops and graphs that a graph calls."""
    return [s.callee.text for s in graph.body if hasattr(s, "callee")]
