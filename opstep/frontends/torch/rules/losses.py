"""Losses, with PyTorch's reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.errors import Untranslatable
from opstep.frontends.torch.rules.indexing import as_index
from opstep.frontends.torch.rules.registry import rule

_REDUCTIONS = ("none", "mean", "sum")


@rule("nll_loss.default", "nll_loss_nd.default")
def nll_loss(b: Body, x, target, weight=None, reduction=1, ignore_index=-100):
    return b.nll_loss(x, as_index(b, target), weight, **_by_label(x, reduction, ignore_index))


def _by_label(x: Var, reduction: int, ignore_index: int) -> dict[str, Any]:
    axis = 1 if x.type.rank > 1 else 0
    return {"axis": axis, "reduction": _REDUCTIONS[reduction], "ignore_index": ignore_index}


@rule("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss_forward(b: Body, x, target, weight, reduction, ignore_index):
    """With the sum of the counted weights, which a mean is divided by."""
    loss = nll_loss(b, x, target, weight, reduction, ignore_index)
    if not b.is_used(1):
        return loss, None
    total = b.expected[1]
    if reduction == 0 and total is not None:
        return loss, b.filled(total, 0)
    counted = b.not_equal(target, ignore_index)
    if weight is None:
        return loss, b.sum(b.to(counted, x.dtype))
    label = b.where(counted, as_index(b, target), 0)
    return loss, b.sum(b.where(counted, b.gather(weight, label, axis=0), 0.0))


@rule("nll_loss_backward.default", "nll_loss2d_backward.default")
def nll_loss_backward(b: Body, gy, x, target, weight, reduction, ignore_index, total_weight):
    """Our op finds the sum of the counted weights again."""
    attrs = _by_label(x, reduction, ignore_index)
    return b.nll_loss_grad(x, as_index(b, target), gy, weight, **attrs)


@rule("cross_entropy_loss.default")
def cross_entropy(b: Body, x, target, weight=None, reduction=1, ignore_index=-100, smoothing=0.0):
    if smoothing or target.dtype.is_float:
        raise Untranslatable("label smoothing, or targets that are probabilities")
    attrs = _by_label(x, reduction, ignore_index)
    return b.softmax_cross_entropy(x, as_index(b, target), weight, **attrs)


def _loss(op: str, *names: str):
    """Of two tensors; `names`: of numbers behind the reduction."""

    def translated(b: Body, x, target, reduction=1, *rest, **attrs):
        attrs |= dict(zip(names, map(float, rest), strict=False))
        return getattr(b, op)(x, target, reduction=_REDUCTIONS[reduction], **attrs)

    return translated


rule("mse_loss.default")(_loss("mse_loss"))
rule("l1_loss.default")(_loss("l1_loss"))
rule("kl_div.default")(_loss("kl_div"))
rule("smooth_l1_loss.default")(_loss("smooth_l1_loss", "beta"))
rule("huber_loss.default")(_loss("huber_loss", "delta"))


@rule("binary_cross_entropy.default")
def binary_cross_entropy(b: Body, x, target, weight=None, reduction=1):
    return _bce(b, b.binary_cross_entropy, x, target, weight, reduction)


@rule("binary_cross_entropy_with_logits.default")
def with_logits(b: Body, x, target, weight=None, pos_weight=None, reduction=1):
    if pos_weight is None:
        return _bce(b, b.binary_cross_entropy_with_logits, x, target, weight, reduction)

    def weighted(x, target, *, reduction):
        """Where the target is 1, by the weight of its class."""
        scale = b.add(b.mul(b.sub(pos_weight, 1.0), target), 1.0)
        lower = b.mul(b.softplus(b.neg(x)), scale)
        each = b.add(b.mul(b.sub(1.0, target), x), lower)
        return each if reduction == "none" else getattr(b, reduction)(each)

    return _bce(b, weighted, x, target, weight, reduction)


def _bce(b: Body, op: Callable[..., Any], x, target, weight, reduction: int):
    if weight is None:
        return op(x, target, reduction=_REDUCTIONS[reduction])
    each = b.mul(op(x, target, reduction="none"), weight)
    return each if reduction == 0 else getattr(b, _REDUCTIONS[reduction])(each)
