"""softmax and log_softmax along an axis, and their gradients.

The largest element is subtracted before the exponential, so nothing overflows. A row that contains
NaN or +inf, or only -inf, becomes NaN.
"""

from __future__ import annotations

from opstep.kernels.rules.axes import axis_of, want_shape
from opstep.kernels.rules.faults import SOFTMAX, SOFTMAX_GRAD
from opstep.kernels.schedules.rows import RowComposite


class AlongAxis(RowComposite):
    """Base: x and the result have one shape; rows lie along one axis."""

    inplace = (0,)

    def infer(x, *others, axis):
        axis_of(axis, x.rank)
        return x

    def flops(x, *others, axis):
        return 5 * x.size


class softmax(AlongAxis):
    """exp(x) divided by its sum along `axis`."""

    signature = "softmax(x: F, *, axis: int = -1)"
    formula = "exp(x - max(x)) / sum(exp(x - max(x)))"
    source = "torch.softmax, ONNX Softmax"
    faults = SOFTMAX

    def define(g, x, *, axis):
        if 0 in x.shape:
            return x
        e = g.exp(g.sub(x, g.max(x, axes=[axis], keepdims=True)))
        return g.mul(e, g.reciprocal(g.sum(e, axes=[axis], keepdims=True)))

    def grad(g, operands, results, grads, *, axis):
        return (g.softmax_grad(results[0], grads[0], axis=axis),)


class log_softmax(AlongAxis):
    """The logarithm of softmax, more accurate than log(softmax(x))."""

    signature = "log_softmax(x: F, *, axis: int = -1)"
    formula = "x - max(x) - log(sum(exp(x - max(x))))"
    source = "torch.log_softmax, ONNX LogSoftmax"
    faults = SOFTMAX

    def define(g, x, *, axis):
        if 0 in x.shape:
            return x
        moved = g.sub(x, g.max(x, axes=[axis], keepdims=True))
        return g.sub(moved, g.log(g.sum(g.exp(moved), axes=[axis], keepdims=True)))

    def grad(g, operands, results, grads, *, axis):
        return (g.log_softmax_grad(results[0], grads[0], axis=axis),)


class SoftmaxGrad(AlongAxis):
    """Base of gradients with respect to x, from the result y and the gradient of y."""

    inplace = ()
    faults = SOFTMAX_GRAD

    def infer(y, gy, *, axis):
        axis_of(axis, y.rank)
        want_shape(gy, y, 1)
        return y


class softmax_grad(SoftmaxGrad):
    """The gradient of softmax with respect to x, from its result y and the gradient of y."""

    signature = "softmax_grad(y: F, gy: F, *, axis: int = -1)"
    formula = "y * (gy - sum(gy * y))"
    source = "ATen _softmax_backward_data"

    def define(g, y, gy, *, axis):
        return g.mul(y, g.sub(gy, g.sum(g.mul(gy, y), axes=[axis], keepdims=True)))


class log_softmax_grad(SoftmaxGrad):
    """The gradient of log_softmax with respect to x, from its result y and the gradient of y."""

    signature = "log_softmax_grad(y: F, gy: F, *, axis: int = -1)"
    formula = "gy - exp(y) * sum(gy)"
    source = "ATen _log_softmax_backward_data"

    def define(g, y, gy, *, axis):
        return g.sub(gy, g.mul(g.exp(y), g.sum(gy, axes=[axis], keepdims=True)))
