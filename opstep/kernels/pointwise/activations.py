"""Activation functions of neural networks. NaN stays NaN in all of them."""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.math import cuda_fast
from opstep.kernels.math.cuda_fast import for_gpu
from opstep.kernels.math.fastmath import erf, exp, expm1, log1p
from opstep.kernels.math.fastmath import sigmoid as logistic
from opstep.kernels.math.fastmath import tanh as tanh_of
from opstep.kernels.pointwise.elementwise import Binary, Elementwise, Unary, derivatives, onto
from opstep.kernels.rules.faults import OVERFLOW, elementwise
from opstep.runtime.device.launch import Clamp
from opstep.runtime.ir.faults import NO_FAULTS, Faults, Rule
from opstep.runtime.ir.op import Mismatch


class relu(Unary):
    """x if x > 0, else 0, also for -0 (PyTorch keeps -0); the gradient at 0 is 0."""

    signature = "relu(x: N)"
    formula = "max(x, 0)"
    source = "torch.relu, ONNX Relu"
    faults = NO_FAULTS

    def oracle(x):
        return np.maximum(x, 0)

    def scalar(x):
        return 0.0 if x <= 0.0 else x

    def clamp(dtype):
        return Clamp(0.0, 0.0, math.inf)

    grad = derivatives(lambda g, x, y, gy: g.where(g.less_equal(y, 0.0), 0.0, gy))


class leaky_relu(Unary):
    """x if x > 0, else slope * x."""

    signature = "leaky_relu(x: F, *, slope: float = 0.01)"
    formula = "x where x > 0, else slope*x"
    source = "torch.nn.functional.leaky_relu (negative_slope), ONNX LeakyRelu (alpha)"
    faults = OVERFLOW

    def oracle(x, *, slope):
        return np.where(x > 0, x, slope * x)

    def scalar(x, slope):
        return x if x > 0.0 else slope * x

    grad = derivatives(lambda g, x, y, gy, slope: g.where(g.greater(x, 0.0), gy, g.mul(gy, slope)))


class prelu(Binary):
    """x if x > 0, else slope * x, with a learned slope.

    The slope broadcasts to x; for one slope per channel of [N, C, H, W], its shape is [C, 1, 1].
    """

    signature = "prelu(x: F, slope: F)"
    formula = "x where x > 0, else slope*x"
    source = "ONNX PRelu, torch.nn.functional.prelu (with weight of shape [C, 1, 1])"
    faults = OVERFLOW

    def infer(x, slope):
        y = Elementwise.infer(x, slope)
        if y.shape != x.shape:
            raise Mismatch(f"slope {slope} does not broadcast to x {x}", 1)
        return y

    def oracle(x, slope):
        return np.where(x > 0, x, slope * x)

    def scalar(x, slope):
        return x if x > 0.0 else slope * x

    def grad(g, operands, results, grads):
        (x, slope), (gy,) = operands, grads
        positive = g.greater(x, 0.0)
        return (
            onto(g, x, lambda: g.where(positive, gy, g.mul(gy, slope))),
            onto(g, slope, lambda: g.where(positive, 0.0, g.mul(gy, x))),
        )


class elu(Unary):
    """Exponential linear unit: tends to -alpha for very negative x. -0 stays -0."""

    signature = "elu(x: F, *, alpha: float = 1.0)"
    formula = "x where x > 0, else alpha*(e**x - 1)"
    source = "Clevert, Unterthiner, Hochreiter 2015; torch.nn.functional.elu, ONNX Elu"
    faults = OVERFLOW

    def oracle(x, *, alpha):
        return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))

    def scalar(x, alpha):
        negative = alpha * expm1(0.0 if x > 0.0 else x)
        return x if x > 0.0 else negative

    def grad(g, operands, results, grads, *, alpha):
        (x,), (gy,) = operands, grads
        slope = g.mul(g.exp(g.minimum(x, 0.0)), alpha)  # y + alpha has lost its digits
        return (g.where(g.greater(x, 0.0), gy, g.mul(gy, slope)),)


class sigmoid(Unary):
    """The logistic function, accurate at both ends."""

    formula = "1 / (1 + e**-x)"
    source = "torch.sigmoid, ONNX Sigmoid"
    faults = NO_FAULTS

    def oracle(x):
        e = np.exp(-np.abs(x))
        return np.where(x >= 0, 1.0, e) / (1.0 + e)

    scalar = logistic
    grad = derivatives(lambda g, x, y, gy: g.mul(gy, g.mul(y, g.sub(1.0, y))))


class silu(Unary):
    """x * sigmoid(x), also called swish."""

    formula = "x / (1 + e**-x)"
    source = "Elfwing, Uchibe, Doya 2017; torch.nn.functional.silu, ONNX Swish"
    faults = Faults(elementwise, Rule("0 times infinity", lambda x: x == -np.inf))

    def oracle(x):
        return x * sigmoid.oracle(x)

    @for_gpu(half=cuda_fast.silu)
    def scalar(x):
        return x * logistic(x)

    def grad(g, operands, results, grads):
        (x,), (y,) = operands, results
        s = g.sigmoid(x)
        return (g.mul(grads[0], g.add(s, g.mul(y, g.sub(1.0, s)))),)


class gelu(Unary):
    """Gaussian error linear unit; `approximate="tanh"` selects the form used by GPT-2."""

    signature = 'gelu(x: F, *, approximate: str = "none")'
    alone = ("f64",)
    choices = {"approximate": ("none", "tanh")}
    formula = "x/2 * (1 + erf(x/sqrt(2))); tanh: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715*x**3)))"
    source = "Hendrycks, Gimpel 2016; torch.nn.functional.gelu, ONNX Gelu"
    faults = Faults(elementwise, Rule("0 times infinity", lambda x, **_: x == -np.inf))

    def infer(x, *, approximate):
        if approximate not in ("none", "tanh"):
            raise Mismatch('approximate is "none" or "tanh"', "approximate")
        return x

    def oracle(x, *, approximate):
        if approximate == "tanh":
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            return 0.5 * x * (1 + np.tanh(inner))
        tail = np.vectorize(math.erfc, otypes=[np.float64])
        return 0.5 * x * tail(-x / math.sqrt(2))

    @for_gpu(cuda_fast.gelu, cuda_fast.gelu_of_half)
    def scalar(x):
        return 0.5 * x * (1.0 + erf(x * 0.7071067811865476))

    @staticmethod
    @for_gpu(half=cuda_fast.gelu_by_tanh)
    def tanh_form(x):
        return 0.5 * x * (1.0 + tanh_of(0.7978845608028654 * (x + 0.044715 * x * x * x)))

    @classmethod
    def function(cls, x, *, approximate):
        return (cls.scalar if approximate == "none" else cls.tanh_form), []

    def grad(g, operands, results, grads, *, approximate):
        (x,), (gy,) = operands, grads
        if approximate == "none":
            share = g.mul(g.add(g.erf(g.mul(x, math.sqrt(0.5))), 1.0), 0.5)
            bell = g.mul(g.exp(g.mul(g.square(x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
            return (g.mul(gy, g.add(share, g.mul(x, bell))),)
        scale = math.sqrt(2.0 / math.pi)
        square = g.square(x)
        t = g.tanh(g.mul(g.mul(x, g.add(g.mul(square, 0.044715), 1.0)), scale))
        inner = g.mul(g.add(g.mul(square, 3.0 * 0.044715), 1.0), scale)
        bent = g.mul(g.mul(x, g.sub(1.0, g.square(t))), inner)
        return (g.mul(gy, g.mul(g.add(g.add(t, 1.0), bent), 0.5)),)


class softplus(Unary):
    """A smooth relu; x itself if beta*x is above the threshold."""

    signature = "softplus(x: F, *, beta: float = 1.0, threshold: float = 20.0)"
    formula = "ln(1 + e**(beta*x)) / beta"
    source = "torch.nn.functional.softplus, ONNX Softplus"
    faults = OVERFLOW

    def infer(x, *, beta, threshold):
        if beta == 0:
            raise Mismatch("beta must not be 0", "beta")
        return x

    def oracle(x, *, beta, threshold):
        z = beta * x
        return np.where(z > threshold, x, np.logaddexp(0, z) / beta)

    def scalar(x, beta, threshold):
        z = beta * x
        # the sum of two NaNs would have the sign of the one that comes first in machine code
        soft = ((z if z > 0.0 else 0.0) + log1p(exp(-np.abs(z)))) / beta
        return x if z > threshold else soft

    def grad(g, operands, results, grads, *, beta, threshold):
        (x,), (gy,) = operands, grads
        z = g.mul(x, beta)
        return (g.where(g.greater(z, threshold), gy, g.mul(gy, g.sigmoid(z))),)


class mish(Unary):
    """x * tanh(softplus(x))."""

    formula = "x * tanh(ln(1 + e**x))"
    source = "Misra 2019; torch.nn.functional.mish, ONNX Mish"
    faults = NO_FAULTS

    def oracle(x):
        return x * np.tanh(np.logaddexp(0, x))

    @for_gpu(half=cuda_fast.mish)
    def scalar(x):
        # tanh(ln(1 + e)) = e*(e + 2) / (e*(e + 2) + 2), with e = e**x; above 20 it is 1
        e = exp(20.0 if x > 20.0 else x)
        n = e * (e + 2.0)
        return x * (n / (n + 2.0))

    def grad(g, operands, results, grads):
        (x,) = operands
        t = g.tanh(g.softplus(x))
        bent = g.mul(g.mul(x, g.sigmoid(x)), g.sub(1.0, g.square(t)))
        return (g.mul(grads[0], g.add(t, bent)),)


class hard_sigmoid(Unary):
    """A piecewise linear approximation of the logistic function."""

    signature = "hard_sigmoid(x: F, *, alpha: float = 0.16666666666666666, beta: float = 0.5)"
    formula = "min(max(alpha*x + beta, 0), 1)"
    source = "torch.nn.functional.hardsigmoid (alpha 1/6), ONNX HardSigmoid (whose alpha is 0.2)"
    faults = NO_FAULTS

    def oracle(x, *, alpha, beta):
        return np.clip(alpha * x + beta, 0, 1)

    def scalar(x, alpha, beta):
        line = alpha * x + beta
        line = 0.0 if line < 0.0 else line
        return 1.0 if line > 1.0 else line

    def grad(g, operands, results, grads, *, alpha, beta):
        (y,), (gy,) = results, grads
        inside = g.logical_and(g.greater(y, 0.0), g.less(y, 1.0))
        return (g.where(inside, g.mul(gy, alpha), 0.0),)


class hard_swish(Unary):
    """x * hard_sigmoid(x)."""

    formula = "x * min(max(x + 3, 0), 6) / 6"
    source = "Howard et al. 2019 (MobileNetV3); torch.nn.functional.hardswish, ONNX HardSwish"
    faults = OVERFLOW

    def oracle(x):
        return x * np.clip(x + 3, 0, 6) / 6

    def scalar(x):
        line = x + 3.0
        line = 0.0 if line < 0.0 else line
        line = 6.0 if line > 6.0 else line
        return x * line / 6.0

    def grad(g, operands, results, grads):
        (x,), (gy,) = operands, grads
        bent = g.mul(gy, g.add(g.div(x, 3.0), 0.5))
        high = g.where(g.greater_equal(x, 3.0), gy, bent)
        return (g.where(g.less_equal(x, -3.0), 0.0, high),)
