"""Who is right: a result of each side beside f64 arithmetic on the operands that this side had."""

from __future__ import annotations

import numpy as np
import torch
from torch import fx

from opstep.differing import judging
from opstep.differing.errors import error_of
from opstep.differing.models import Own
from opstep.frontends.torch.drafts import Value
from opstep.frontends.torch.evaluating import Exact, Known, arguments, array_of

CHOOSES = {  # ops whose indices may be others where elements are equal
    "argmax", "argmin", "sort", "topk", "max", "min", "kthvalue", "median", "nanmedian", "mode",
}  # fmt: skip


def own_error(
    value: Value, known: Known, exact: Exact, tolerance: float | None = None
) -> Own | None:
    """Of a value that one side had; None where PyTorch has no f64 of the op."""

    def again(rng: np.random.Generator | None = None) -> torch.Tensor:
        return _in_order(value.node, *exact.results([value], rng))

    got = _in_order(value.node, known[value])
    try:
        target = again()
        if not got.is_floating_point():
            return _own_choice(value, exact, got, target)
        return judging.own_error(
            array_of(got), target.numpy(), tolerance, lambda: exact.growth(value),
            lambda rng: again(rng).numpy(),
        )  # fmt: skip
    except (RuntimeError, NotImplementedError):  # not for this type, of many kinds
        return None


def _own_choice(value: Value, exact: Exact, got: torch.Tensor, target: torch.Tensor) -> Own:
    """Of integers and bools: they are right or wrong. Among equal elements any may be chosen."""
    same = torch.equal(got, target.to(got.dtype)) or _chose_equal(value, exact, got, target)
    found = error_of(got.numpy(), target.numpy())
    return Own(found, 0.0 if same else float("inf"))


def _chose_equal(value: Value, exact: Exact, got: torch.Tensor, target: torch.Tensor) -> bool:
    op = str(value.node.target).split(".")[1:2]
    if not CHOOSES.intersection(op) or got.dtype != torch.int64:
        return False
    given = arguments(value.node)
    x = exact.operand(given["self"])
    dim = given.get("dim")
    if dim is None or x.ndim == 0:
        x, dim = x.reshape(-1), 0
    chosen = [_in_order(value.node, x.gather(dim, _along(i, x, dim))) for i in (got, target)]
    return torch.equal(*chosen)


def _in_order(node: fx.Node, result: torch.Tensor) -> torch.Tensor:
    """An op's result, in one order where the op may give any."""
    if node.target is not torch.ops.aten.topk.default or not result.ndim:
        return result
    given = arguments(node)
    return result if given["sorted"] else result.sort(given["dim"])[0]


def _along(indices: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Indices as `gather` takes them: with the axis that they were chosen along."""
    if indices.ndim < x.ndim:
        indices = indices.unsqueeze(dim) if indices.ndim else indices.reshape([1] * x.ndim)
    return indices
