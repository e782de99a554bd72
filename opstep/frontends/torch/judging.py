"""Who is right: a result of each side beside f64 arithmetic on the operands that this side had."""

from __future__ import annotations

import numpy as np
import torch
from torch import fx

from opstep.differing.elements import Elements, difference
from opstep.differing.errors import TOLERANCE, error_of
from opstep.differing.models import SHAKEN, SLACK, Own, excess, rms
from opstep.frontends.torch.dims import dtype_of
from opstep.frontends.torch.drafts import Value
from opstep.frontends.torch.evaluating import Exact, Known, arguments, array_of

CHOOSES = {  # ops whose indices may be others where elements are equal
    "argmax", "argmin", "sort", "topk", "max", "min", "kthvalue", "median", "nanmedian", "mode",
}  # fmt: skip


def own_error(
    value: Value, known: Known, exact: Exact, tolerance: float | None = None
) -> Own | None:
    """Of a value that one side had; None where PyTorch has no f64 of the op."""
    got = _in_order(value.node, known[value])
    try:
        target = _in_order(value.node, *exact.results([value]))
        if not got.is_floating_point():
            return _own_choice(value, exact, got, target)
        y, x = _in_range(target, got).numpy(), got.double().numpy()
        scale, floor = _tolerance(y, got.dtype, tolerance)
        bound = scale * np.abs(y) + floor
        most = excess(x, y, bound)
        if most > 1:
            bound = bound * exact.growth(value) + _moved(value, target, exact)
            most = excess(x, y, bound)
    except (RuntimeError, NotImplementedError):  # not for this type, of many kinds
        return None
    return Own(error_of(x, y), most)


def _moved(value: Value, target: torch.Tensor, exact: Exact) -> np.ndarray:
    """How far rounding of its operands may move a result."""
    rngs = (np.random.default_rng(k) for k in range(SHAKEN))
    shaken = [_in_order(value.node, *exact.results([value], rng)) for rng in rngs]
    with np.errstate(all="ignore"):
        moved = np.max([np.abs((s - target).numpy()) for s in shaken], axis=0)
    moved = np.where(np.isfinite(moved), moved, 0.0)
    return SLACK * exact.growth(value) * np.maximum(moved, rms(moved))


def _in_range(target: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """What is exact, as far as the type of what was got reaches: numbers beyond are infinite, or as
    large as can be.
    """
    rounded = target.to(got.dtype).double()
    most = got.double().where(got.abs() == torch.finfo(got.dtype).max, rounded)
    beyond = rounded.where(most.sign() != rounded.sign(), most)
    return torch.where(rounded.isinf(), beyond, target)


def apart(a: torch.Tensor, b: torch.Tensor, tolerance: float | None = None) -> Elements | None:
    """How results of two sides differ where that is more than rounding to the coarser type: for
    each element relative to itself and to the others' root mean square.
    """
    x, y = array_of(a), array_of(b)
    if not (a.is_floating_point() and b.is_floating_point()):
        return difference(x, y)
    coarse = max(a.dtype, b.dtype, key=lambda t: TOLERANCE[dtype_of(t).name])
    scale, floor = _tolerance(b.double().numpy(), coarse, tolerance)
    return difference(x, y, scale, floor, dtype_of(coarse))


def _tolerance(
    y: np.ndarray, dtype: torch.dtype, tolerance: float | None
) -> tuple[float, float]:  # fmt: skip
    """How far elements may be from y: relative to themselves, and absolutely."""
    scale = TOLERANCE[dtype_of(dtype).name] if tolerance is None else tolerance
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    return scale, scale * rms(y[np.isfinite(y)]) + SLACK * smallest


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
