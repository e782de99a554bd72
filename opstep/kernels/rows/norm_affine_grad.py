"""All gradients of layer_norm in one op: by x, and by its scale and bias, which are sums over rows.

A few rows are summed at a time, then those sums in f64: the bits depend on the shape alone.
"""

from __future__ import annotations

import math
from math import prod
from typing import Any

import numpy as np

from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.kernels.reduce.row_sums import row_sum
from opstep.kernels.rows import cuda_norm_affine_grad as on_gpu
from opstep.kernels.rows.norm import (
    RowNorm,
    layer_norm_formula,
    layer_norm_grad,
)
from opstep.kernels.rows.rows import centred_dot, rounded, squared_distance
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, Scratch, thread_a_unit
from opstep.runtime.transforms.backward import pull_back
from opstep.runtime.transforms.composite import Composite

ROWS = 32  # that are summed in the data's type


class layer_norm_affine_grad(RowNorm, Composite):
    """The gradients of layer_norm with respect to x, scale and bias.

    Kernels by hand sum over rows and along them as each row goes by: a schedule takes one or the
    other. A GPU has them for rows in registers.
    """

    signature = (
        "layer_norm_affine_grad(x: F, gy: F, scale: F, *, shape: dims, epsilon: float = 1e-5)"
    )
    source = "ATen native_layer_norm_backward"
    results = ("gx", "g_scale", "g_bias")
    inplace = ()

    def infer(x, gy, scale, *, shape, epsilon):
        return layer_norm_grad.infer(x, gy, scale, shape=shape, epsilon=epsilon), scale, scale

    def cpu(x, gy, scale, gx, g_scale, g_bias, *, shape, epsilon):
        n = prod(shape)
        rows = x.size // n if n else 0
        parts = -(-rows // ROWS)
        sums = Scratch(x.dtype, max(1, 2 * parts * n))
        args = (x, gy, scale, gx, sums, parts, rows, n, epsilon)
        grain = max(1, 32768 // max(ROWS * n, 1))
        first = Launch(affine_grad_rows, *args, units=parts, grain=grain)
        args = (sums, g_scale, g_bias, parts, n)
        return [first, Launch(add_parts, *args, units=n, cuda=thread_a_unit)]

    def cuda(x, gy, scale, gx, g_scale, g_bias, *, shape, epsilon):
        n = prod(shape)
        args = (x, gy, scale, gx, g_scale, g_bias)
        if x.size == 0 or x.size >= LIMIT:
            return layer_norm_affine_grad.cpu(*args, shape=shape, epsilon=epsilon)
        return on_gpu.layer_norm_affine_grad(*args, n, epsilon)

    @classmethod
    def has_kernel(cls, gpu: bool, types: tuple[Any, ...], attrs: dict) -> bool:
        if not gpu or 0 in types[0].shape:
            return True
        args = [Arg(t, k, types[0].dtype) for k, t in enumerate(types)]
        return on_gpu.team_of(prod(attrs["shape"]), args) is not None

    def define(g, x, gy, scale, *, shape, epsilon):
        plain = g.layer_norm(x, shape=shape, epsilon=epsilon)
        gx = g.layer_norm_grad(x, gy, scale, shape=shape, epsilon=epsilon)
        return gx, g.sum_to(g.mul(gy, plain), scale), g.sum_to(gy, scale)

    def flops(x, *others, shape, epsilon):
        return 12 * x.size

    def grad(g, operands, results, grads, *, shape, epsilon):
        def formula(x, gy, scale):
            plain, gx = layer_norm_formula(g, x, gy, scale, shape, epsilon)
            return gx, g.sum_to(g.mul(gy, plain), scale), g.sum_to(gy, scale)

        return pull_back(g, formula, operands, grads)


# --- kernels --------------------------------------------------------------------------------------


def layer_norm_grad_of_row(x, gy, scale, scaled, gx, n, epsilon):
    """Writes gx; gives the row's mean, and 1 / its deviation in f64."""
    for i in range(n):
        gx[i] = gy[i] * scale[i] if scaled else gy[i]
    centre = rounded(row_sum(x, n) / n)
    inverse = 1.0 / math.sqrt(squared_distance(x, centre, n) / n + epsilon)
    mean = rounded(row_sum(gx, n) / n)
    slope = rounded(centred_dot(gx, x, centre, n) / n * inverse * inverse)
    factor = rounded(inverse)
    for i in range(n):
        gx[i] = (gx[i] - mean - (x[i] - centre) * slope) * factor
    return centre, inverse


def affine_grad_rows(x, gy, scale, gx, sums, parts, rows, n, epsilon, lo, hi):
    """Units are parts of `ROWS` rows; `sums` holds those of gy * plain of all parts, then of gy."""
    for part in range(lo, hi):
        of_scale = offset(sums, part * n)
        of_bias = offset(sums, (parts + part) * n)
        for i in range(n):
            of_scale[i] = 0.0
            of_bias[i] = 0.0
        for row in range(part * ROWS, min(rows, (part + 1) * ROWS)):
            source = offset(x, row * n)
            incoming = offset(gy, row * n)
            target = offset(gx, row * n)
            centre, inverse = layer_norm_grad_of_row(
                source, incoming, scale, True, target, n, epsilon
            )
            factor = rounded(inverse)
            for i in range(n):
                of_scale[i] += incoming[i] * ((source[i] - centre) * factor)
                of_bias[i] += incoming[i]


def add_parts(sums, g_scale, g_bias, parts, n, lo, hi):
    for i in range(lo, hi):
        of_scale = np.float64(0.0)
        of_bias = np.float64(0.0)
        for part in range(parts):
            of_scale += sums[part * n + i]
            of_bias += sums[(parts + part) * n + i]
        g_scale[i] = of_scale
        g_bias[i] = of_bias
