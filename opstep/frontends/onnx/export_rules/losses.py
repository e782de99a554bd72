"""Losses of two tensors, and of scores and labels."""

from __future__ import annotations

from opstep.frontends.onnx.export_rules import rule, wide
from opstep.kernels.rules.axes import axis_of
from opstep.runtime.ir.types import i64

# --- labels ---


def _classes_second(b, x, axis):
    """x with the classes on axis 1, as ONNX wants them; a row of scores as a batch of one."""
    at = axis_of(axis, x.type.rank)
    rest = [k for k in range(x.type.rank) if k != at]
    if not rest:
        return b.unsqueeze(x, axes=[0])
    return b.transpose(x, perm=[rest[0], at, *rest[1:]]) if at != 1 else x


def _label_loss(op_type):
    def write(b, t, x, label, weight, axis, reduction, ignore_index):
        scores = _classes_second(b, x, axis)
        if not label.type.rank:
            label = b.unsqueeze(label, axes=[0])
        made = t.with_shape(label.shape) if reduction == "none" else t
        found = b.onnx(
            op_type, scores, label, weight, out=made, reduction=reduction,
            ignore_index=ignore_index,
        )  # fmt: skip
        return b.shaped(found, t.shape)

    return write


rule("nll_loss")(_label_loss("NegativeLogLikelihoodLoss"))
rule("softmax_cross_entropy")(_label_loss("SoftmaxCrossEntropyLoss"))


def _picked(b, x, label, gy, weight, axis, reduction, ignore_index):
    """What each position counts, and 1 at its label."""
    at = axis_of(axis, x.type.rank)
    label = b.to(label, i64)
    counts = b.not_equal(label, ignore_index)
    safe = b.where(counts, label, 0)
    if weight is None:
        factor = b.cast(counts, dtype=x.dtype)
    else:
        factor = b.where(counts, b.gather(weight, safe), 0)
    scale = b.div(gy, b.sum(factor)) if reduction == "mean" else gy
    hot = b.one_hot(safe, classes=x.shape[at], axis=at, dtype=x.dtype)
    return b.unsqueeze(b.mul(factor, scale), axes=[at]), hot


@rule("softmax_cross_entropy_grad")
@wide
def _softmax_cross_entropy_grad(b, t, x, label, gy, weight, axis, reduction, ignore_index):
    factor, hot = _picked(b, x, label, gy, weight, axis, reduction, ignore_index)
    return b.mul(factor, b.sub(b.softmax(x, axis=axis), hot))


@rule("nll_loss_grad")
@wide
def _nll_loss_grad(b, t, x, label, gy, weight, axis, reduction, ignore_index):
    factor, hot = _picked(b, x, label, gy, weight, axis, reduction, ignore_index)
    return b.neg(b.mul(factor, hot))
