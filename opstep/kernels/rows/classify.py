"""Classification losses: softmax_cross_entropy of scores, nll_loss of log probabilities.

Labels are class indices. Positions with the label `ignore_index` do not count; any other label
outside 0..C-1 gives NaN. Losses add as `sum` does.
"""

from __future__ import annotations

import numpy as np

from opstep.kernels.rules import indices as lost
from opstep.kernels.rules.axes import axis_of
from opstep.kernels.rules.faults import LABELLED
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.ir.op import Mismatch
from opstep.runtime.ir.types import TensorType, i32, i64

REDUCTIONS = {"none": 0, "sum": 1, "mean": 2}


class ByLabel(RowComposite):
    """Base: of each position, one class is picked along `axis`; `weight` has one number a class."""

    faults = LABELLED
    outside = lost.labels
    choices = {"reduction": tuple(REDUCTIONS)}

    def infer(x, label, weight, *, axis, reduction, ignore_index):
        shape = _check(x, label, weight, axis, reduction)
        return x.with_shape(shape if reduction == "none" else ())

    def flops(x, *others, **attrs):
        return 5 * x.size


class Labels:
    """The classes that labels name, with the axis of the classes; `valid`: where they do."""

    def __init__(self, g, x, label, axis: int, ignore_index: int):
        self.g, self.x, self.axis = g, x, axis
        self.wide = g.to_dtype(g.unsqueeze(label, axes=[axis_of(axis, x.type.rank)]), i64)
        self.left_out = g.equal(self.wide, ignore_index)
        inside = g.logical_and(g.greater_equal(self.wide, 0), g.less(self.wide, x.shape[axis]))
        self.valid = g.logical_and(inside, g.logical_not(self.left_out))
        self.safe = g.where(self.valid, self.wide, 0)

    def score(self):
        """The element of x that belongs to the label."""
        return self.g.gather_elements(self.x, self.safe, axis=self.axis)

    def hot(self):
        """Whether an element of x belongs to the label."""
        shape = [1] * self.x.type.rank
        shape[self.axis] = self.x.shape[self.axis]
        place = self.g.iota(shape=shape, axis=self.axis, dtype=i32)
        return self.g.equal(place, self.g.cast(self.safe, dtype=i32))

    def weights(self, weight):
        """Of the labels; 0 for those that do not count."""
        g = self.g
        if weight is None:
            return g.cast(self.valid, dtype=self.x.dtype)
        return g.where(self.valid, g.gather(weight, self.safe), 0.0)

    def counted(self, v):
        """v where there is a class, 0 where the label is left out, else NaN."""
        return self.g.where(self.left_out, 0.0, self.g.where(self.valid, v, np.nan))

    def reduced(self, away, weight, reduction: str):
        """The loss, of what each label costs with a weight of 1."""
        g = self.g
        weights = None if weight is None and reduction != "mean" else self.weights(weight)
        each = self.counted(away if weight is None else g.mul(away, weights))
        if reduction == "none":
            return g.squeeze(each, axes=[self.axis])
        return g.sum(each) if reduction == "sum" else g.div(g.sum(each), g.sum(weights))

    def factor(self, gy, weight, reduction: str):
        """The factor of the gradient of a loss by x."""
        g = self.g
        if reduction == "none":
            gy = g.unsqueeze(gy, axes=[self.axis])
        if weight is not None or reduction == "mean":
            weights = self.weights(weight)
            mass = g.sum(weights) if reduction == "mean" else None
            gy = gy if weight is None else g.mul(gy, weights)
            gy = gy if mass is None else g.div(gy, mass)
        return self.counted(gy)


class softmax_cross_entropy(ByLabel):
    """-log(softmax(x)) of the labelled class, times its weight; "mean" divides by the sum of the
    counted weights.

    x: scores, with the classes along `axis`; label: the shape of x without that axis.
    """

    signature = (
        "softmax_cross_entropy(x: F, label: X, weight: F?, *, axis: int = 1,"
        ' reduction: str = "mean", ignore_index: int = -100)'
    )
    formula = "weight[label] * (log(sum(exp(x))) - x[label])"
    source = "torch.nn.functional.cross_entropy, ONNX SoftmaxCrossEntropyLoss"

    def define(g, x, label, weight, *, axis, reduction, ignore_index):
        how = {"axes": [axis], "keepdims": True}
        top = g.max(x, **how)
        log_sum = g.log(g.sum(g.exp(g.sub(x, top)), **how))
        labels = Labels(g, x, label, axis, ignore_index)
        away = g.sub(log_sum, g.sub(labels.score(), top))
        return labels.reduced(away, weight, reduction)

    def grad(g, operands, results, grads, **attrs):
        x, label, weight = operands
        gx = g.softmax_cross_entropy_grad(x, label, grads[0], weight, **attrs)
        return g.to_dtype(gx, x.dtype), None, None


class nll_loss(ByLabel):
    """-x of the labelled class, times its weight; "mean" divides by the sum of the counted weights.

    x: log probabilities, with the classes along `axis`; label: the shape of x without that axis.
    """

    signature = (
        "nll_loss(x: F, label: X, weight: F?, *, axis: int = 1,"
        ' reduction: str = "mean", ignore_index: int = -100)'
    )
    formula = "-weight[label] * x[label]"
    source = "torch.nn.functional.nll_loss, ONNX NegativeLogLikelihoodLoss"

    def define(g, x, label, weight, *, axis, reduction, ignore_index):
        labels = Labels(g, x, label, axis, ignore_index)
        return labels.reduced(g.neg(labels.score()), weight, reduction)

    def flops(x, label, *others, **attrs):
        return label.size

    def grad(g, operands, results, grads, **attrs):
        x, label, weight = operands
        gx = g.nll_loss_grad(x, label, grads[0], weight, **attrs)
        return g.to_dtype(gx, x.dtype), None, None


class LabelGradient(ByLabel):
    """Base of gradients of such losses with respect to x."""

    def infer(x, label, gy, weight, *, axis, reduction, ignore_index):
        shape = _check(x, label, weight, axis, reduction)
        wanted = x.with_shape(shape if reduction == "none" else ())
        if gy.shape != wanted.shape:
            raise Mismatch(f"{gy} is not the gradient by {wanted}", 2)
        return x


class softmax_cross_entropy_grad(LabelGradient):
    """The gradient of softmax_cross_entropy with respect to x."""

    signature = (
        "softmax_cross_entropy_grad(x: F, label: X, gy: F, weight: F?, *, axis: int = 1,"
        ' reduction: str = "mean", ignore_index: int = -100)'
    )
    formula = "gy * weight[label] * (softmax(x) - one_hot(label))"

    def define(g, x, label, gy, weight, *, axis, reduction, ignore_index):
        labels = Labels(g, x, label, axis, ignore_index)
        factor = labels.factor(gy, weight, reduction)
        how = {"axes": [axis], "keepdims": True}
        e = g.exp(g.sub(x, g.max(x, **how)))
        share = g.mul(e, g.div(factor, g.sum(e, **how)))
        by_x = g.sub(share, g.where(labels.hot(), factor, 0.0))
        return g.where(labels.valid, by_x, factor)


class nll_loss_grad(LabelGradient):
    """The gradient of nll_loss with respect to x."""

    signature = (
        "nll_loss_grad(x: F, label: X, gy: F, weight: F?, *, axis: int = 1,"
        ' reduction: str = "mean", ignore_index: int = -100)'
    )
    formula = "-gy * weight[label] * one_hot(label)"
    source = "ATen nll_loss_backward"

    def define(g, x, label, gy, weight, *, axis, reduction, ignore_index):
        labels = Labels(g, x, label, axis, ignore_index)
        factor = labels.factor(gy, weight, reduction)
        rest = g.where(labels.valid, 0.0, factor)
        return g.where(g.logical_and(labels.valid, labels.hot()), g.neg(factor), rest)

    flops = nll_loss.flops


def _check(x: TensorType, label: TensorType, weight: TensorType | None, axis: int, reduction: str):
    """The shape of the positions; raises Mismatch."""
    a = axis_of(axis, x.rank)
    shape = (*x.shape[:a], *x.shape[a + 1 :])
    if x.shape[a] == 0:
        raise Mismatch(f"{x} has no classes along axis {a}", 0)
    if label.shape != shape:
        wanted = f"[{', '.join(map(str, shape))}]"
        raise Mismatch(
            f"{label} does not label {x}: without axis {a} that is {wanted}",
            1,
            hint="axis=… names the axis of the classes",
        )
    if weight is not None and weight.shape != (x.shape[a],):
        raise Mismatch(f"{weight} is not one weight for each of {x.shape[a]} classes", 2)
    if reduction not in REDUCTIONS:
        raise Mismatch(
            f"no reduction {reduction!r}", "reduction", hint=f"there are {', '.join(REDUCTIONS)}"
        )
    return shape
