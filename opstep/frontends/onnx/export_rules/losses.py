"""Losses of scores and labels."""

from __future__ import annotations

from opstep.frontends.onnx.export_rules import rule
from opstep.kernels.rules.axes import axis_of


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
