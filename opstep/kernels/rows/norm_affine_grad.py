"""All gradients of layer_norm in one op: by x, and by its scale and bias, which are sums over rows.

A few rows are summed at a time, then those sums in f64: the bits depend on the shape alone.
"""

from __future__ import annotations

from opstep.kernels.rows.norm import (
    RowNorm,
    gradient_of_rows,
    layer_norm_formula,
    layer_norm_grad,
    statistics_of_rows,
)
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.transforms.backward import pull_back


class layer_norm_affine_grad(RowNorm, RowComposite):
    """The gradients of layer_norm with respect to x, scale and bias."""

    signature = (
        "layer_norm_affine_grad(x: F, gy: F, scale: F, *, shape: dims, epsilon: float = 1e-5)"
    )
    source = "ATen native_layer_norm_backward"
    results = ("gx", "g_scale", "g_bias")
    inplace = ()
    exact_on = ()

    def infer(x, gy, scale, *, shape, epsilon):
        return layer_norm_grad.infer(x, gy, scale, shape=shape, epsilon=epsilon), scale, scale

    def define(g, x, gy, scale, *, shape, epsilon):
        away, _, inverse = statistics_of_rows(g, x, shape, epsilon)
        gx = gradient_of_rows(g, away, inverse, g.mul(gy, scale), shape)
        return gx, g.sum_to(g.mul(gy, g.mul(away, inverse)), scale), g.sum_to(gy, scale)

    def flops(x, *others, shape, epsilon):
        return 12 * x.size

    def grad(g, operands, results, grads, *, shape, epsilon):
        def formula(x, gy, scale):
            plain, gx = layer_norm_formula(g, x, gy, scale, shape, epsilon)
            return gx, g.sum_to(g.mul(gy, plain), scale), g.sum_to(gy, scale)

        return pull_back(g, formula, operands, grads)
