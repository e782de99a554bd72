"""Classification losses: softmax_cross_entropy of scores, nll_loss of log probabilities.

Labels are class indices. Positions with the label `ignore_index` do not count; any other label
outside 0..C-1 gives NaN. Losses are summed in f64, in blocks of a fixed number of positions.
"""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.reduce.runs import largest_of
from opstep.kernels.rows import cuda_classify as gpu
from opstep.kernels.rows.cuda_moments import fits_32_bits
from opstep.kernels.rows.rows import exponential_sum, rounded
from opstep.kernels.rows.softmax_within import (
    COLUMNS,
    column_exponential_sums,
    column_softmax,
    softmax_row,
)
from opstep.kernels.rules import indices as lost
from opstep.kernels.rules.axes import around, axis_of
from opstep.kernels.rules.pitfalls import LABELLED
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import TensorType, f64

BLOCK = 64  # positions whose losses are summed together
REDUCTIONS = {"none": 0, "sum": 1, "mean": 2}


class ByLabel(Op):
    """Base: of each position, one class is picked along `axis`; `weight` has one number a class."""

    faults = LABELLED
    outside = lost.labels
    choices = {"reduction": tuple(REDUCTIONS)}

    def infer(x, label, weight, *, axis, reduction, ignore_index):
        shape = _check(x, label, weight, axis, reduction)
        return x.with_shape(shape if reduction == "none" else ())

    def flops(x, *others, **attrs):
        return 5 * x.size


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

    def oracle(x, label, weight=None, *, axis, reduction, ignore_index):
        moved = x - np.max(x, axis, keepdims=True, initial=-np.inf)
        with np.errstate(divide="ignore"):
            scores = moved - np.log(np.sum(np.exp(moved), axis, keepdims=True))
        return nll_loss.oracle(
            scores, label, weight, axis=axis, reduction=reduction, ignore_index=ignore_index
        )

    def cpu(x, label, weight, y, *, axis, reduction, ignore_index):
        return _forward(True, x, label, weight, y, axis, reduction, ignore_index)

    def cuda(x, label, weight, y, *, axis, reduction, ignore_index):
        args = (True, x, label, weight, y)
        if x.size == 0:
            return _forward(*args, axis, reduction, ignore_index)
        positions = around(x.shape, axis_of(axis, x.rank))
        return gpu.label_loss(*args, ignore_index, positions, reduction)

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

    def oracle(x, label, weight=None, *, axis, reduction, ignore_index):
        counts = label != ignore_index
        inside = (label >= 0) & (label < x.shape[axis])
        safe = np.where(inside, label, 0)
        picked = np.take_along_axis(x, np.expand_dims(safe, axis), axis).squeeze(axis)
        factor = np.where(counts, 1.0 if weight is None else weight[safe], 0.0)
        losses = np.where(counts, np.where(inside, -picked * factor, np.nan), 0.0)
        if reduction == "none":
            return losses
        with np.errstate(invalid="ignore"):
            return losses.sum() / factor.sum() if reduction == "mean" else losses.sum()

    def cpu(x, label, weight, y, *, axis, reduction, ignore_index):
        return _forward(False, x, label, weight, y, axis, reduction, ignore_index)

    def cuda(x, label, weight, y, *, axis, reduction, ignore_index):
        args = (False, x, label, weight, y)
        if x.size == 0:
            return _forward(*args, axis, reduction, ignore_index)
        positions = around(x.shape, axis_of(axis, x.rank))
        return gpu.label_loss(*args, ignore_index, positions, reduction)

    def flops(x, label, *others, **attrs):
        return label.size

    def grad(g, operands, results, grads, **attrs):
        x, label, weight = operands
        gx = g.nll_loss_grad(x, label, grads[0], weight, **attrs)
        return g.to_dtype(gx, x.dtype), None, None


class softmax_cross_entropy_grad(ByLabel):
    """The gradient of softmax_cross_entropy with respect to x."""

    signature = (
        "softmax_cross_entropy_grad(x: F, label: X, gy: F, weight: F?, *, axis: int = 1,"
        ' reduction: str = "mean", ignore_index: int = -100)'
    )
    formula = "gy * weight[label] * (softmax(x) - one_hot(label))"
    faults = LABELLED

    def infer(x, label, gy, weight, *, axis, reduction, ignore_index):
        _check_gradient(x, label, gy, weight, axis, reduction)
        return x

    def oracle(x, label, gy, weight=None, *, axis, reduction, ignore_index):
        e = np.exp(x - np.max(x, axis, keepdims=True, initial=-np.inf))
        share = e / np.sum(e, axis, keepdims=True)
        factor, hot = _picked(x, label, gy, weight, axis, reduction, ignore_index)
        counts = np.expand_dims(label != ignore_index, axis)
        return np.where(counts, factor * (share - hot), 0.0)

    def cpu(x, label, gy, weight, gx, *, axis, reduction, ignore_index):
        before, n, inner = around(x.shape, axis_of(axis, x.rank))
        launches, mass = _mass(x, label, weight, axis, reduction, ignore_index)
        gy_step = reduction == "none"
        args = (x, label, gy, gy_step, weight or x, weight is not None, mass, ignore_index, gx, n)
        if inner == 1:
            grain = max(1, 8192 // n)
            return [*launches, Launch(cross_entropy_grad_rows, *args, units=before, grain=grain)]
        tiles = [Scratch(t, COLUMNS, per_lane=True) for t in (x.dtype, f64)]
        grain = max(COLUMNS, 8192 // n)
        last = Launch(
            cross_entropy_grad_columns, *args, inner, *tiles, units=before * inner, grain=grain
        )
        return [*launches, last]

    def cuda(x, label, gy, weight, gx, *, axis, reduction, ignore_index):
        if x.size == 0:
            return []
        positions = around(x.shape, axis_of(axis, x.rank))
        launches, mass = _mass_on_gpu(x, label, weight, positions[1], reduction, ignore_index)
        step = int(reduction == "none")
        args = (x, label, gy, step, weight, mass, ignore_index, gx, positions)
        return [*launches, *gpu.cross_entropy_grad(*args, factor_of)]

    def grad(g, operands, results, grads, **attrs):
        (x, label, gy, weight), (h,) = operands, grads
        picked = g.nll_loss_grad(x, label, gy, weight, **attrs)
        factor = g.neg(g.sum(picked, axes=[attrs["axis"]], keepdims=True))
        share = g.softmax(x, axis=attrs["axis"])
        by_x = g.softmax_grad(share, g.mul(h, factor), axis=attrs["axis"])
        return by_x, None, _by_incoming(g, operands, h, attrs, g.softmax_cross_entropy_grad), None


class nll_loss_grad(ByLabel):
    """The gradient of nll_loss with respect to x."""

    signature = (
        "nll_loss_grad(x: F, label: X, gy: F, weight: F?, *, axis: int = 1,"
        ' reduction: str = "mean", ignore_index: int = -100)'
    )
    formula = "-gy * weight[label] * one_hot(label)"
    source = "ATen nll_loss_backward"
    faults = LABELLED

    def infer(x, label, gy, weight, *, axis, reduction, ignore_index):
        _check_gradient(x, label, gy, weight, axis, reduction)
        return x

    def oracle(x, label, gy, weight=None, *, axis, reduction, ignore_index):
        factor, hot = _picked(x, label, gy, weight, axis, reduction, ignore_index)
        counts = np.expand_dims(label != ignore_index, axis)
        unknown = np.expand_dims((label < 0) | (label >= x.shape[axis]), axis)
        return np.where(counts & ((hot != 0) | unknown), -factor, 0.0)

    def cpu(x, label, gy, weight, gx, *, axis, reduction, ignore_index):
        before, n, inner = around(x.shape, axis_of(axis, x.rank))
        launches, mass = _mass(x, label, weight, axis, reduction, ignore_index)
        gy_step = reduction == "none"
        args = (label, gy, gy_step, weight or x, weight is not None, mass, ignore_index, gx, n)
        grain = max(1, 32768 // n)
        return [*launches, Launch(nll_grad, *args, inner, units=before * inner, grain=grain)]

    def cuda(x, label, gy, weight, gx, *, axis, reduction, ignore_index):
        if x.size == 0:
            return []
        attrs = {"axis": axis, "reduction": reduction, "ignore_index": ignore_index}
        if not fits_32_bits(gx):
            return nll_loss_grad.cpu(x, label, gy, weight, gx, **attrs)
        positions = around(x.shape, axis_of(axis, x.rank))
        launches, mass = _mass_on_gpu(x, label, weight, positions[1], reduction, ignore_index)
        step, weighted = int(reduction == "none"), weight is not None
        args = (label, gy, step, weight or x, weighted, mass, ignore_index, gx, positions)
        return [*launches, gpu.nll_grad(*args, factor_of)]

    flops = nll_loss.flops

    def grad(g, operands, results, grads, **attrs):
        return None, None, _by_incoming(g, operands, grads[0], attrs, g.nll_loss_grad), None


def _by_incoming(g, operands, h, attrs: dict, gradient):
    """What a loss's gradient, in which gy is a factor, passes on to gy; `h` is what comes in."""
    x, label, gy, weight = operands
    each = g.mul(
        h, gradient(x, label, g.full(shape=gy.shape, value=1.0, dtype=gy.dtype), weight, **attrs)
    )
    axes = [attrs["axis"]] if attrs["reduction"] == "none" else None
    return g.sum(each, axes=axes, keepdims=False)


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


def _check_gradient(x, label, gy, weight, axis: int, reduction: str) -> None:
    shape = _check(x, label, weight, axis, reduction)
    wanted = x.with_shape(shape if reduction == "none" else ())
    if gy.shape != wanted.shape:
        raise Mismatch(f"{gy} is not the gradient by {wanted}", 2)


def _picked(x, label, gy, weight, axis, reduction, ignore_index):
    """For oracles: each position's factor, and one-hot labels, both with the class axis."""
    classes = x.shape[axis]
    inside = (label >= 0) & (label < classes)
    safe = np.where(inside, label, 0)
    counts = inside & (label != ignore_index)
    w = np.where(counts, 1.0 if weight is None else weight[safe], 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = gy * w / w.sum() if reduction == "mean" else gy * w
    factor = np.where(inside | (label == ignore_index), factor, np.nan)
    hot = np.moveaxis(np.eye(classes)[safe], -1, axis)
    return np.expand_dims(factor, axis), hot


def _forward(scores: bool, x: Arg, label, weight, y, axis, reduction, ignore_index) -> list[Launch]:
    before, n, inner = around(x.shape, axis_of(axis, x.rank))
    positions = before * inner
    blocks = -(-positions // BLOCK)
    each = reduction == "none"
    partial = Scratch(f64, 2 * max(blocks, 1))
    tiles = [Scratch(t, BLOCK, per_lane=True) for t in (x.dtype, f64)]
    args = (x, label, weight or x, weight is not None, ignore_index, scores, n, inner, positions)
    grain = max(1, 8192 // (BLOCK * (n if scores else 1)))
    first = Launch(label_losses, *args, each, y, partial, *tiles, units=blocks, grain=grain)
    if each:
        return [first]
    return [first, Launch(total_loss, y, partial, blocks, reduction == "mean", units=1)]


def _mass(x: Arg, label: Arg, weight, axis: int, reduction: str, ignore_index: int):
    """(launches, where they leave 1 / the sum of weights that count, or 1 without a mean)."""
    mass = Scratch(f64, 1)
    count = label.size if reduction == "mean" else 0
    n = x.shape[axis_of(axis, x.rank)]
    args = (label, weight or x, weight is not None, ignore_index, n, count, mass)
    return [Launch(inverse_mass, *args, units=1)], mass


def _mass_on_gpu(x: Arg, label: Arg, weight, n: int, reduction: str, ignore_index: int):
    """As `_mass`."""
    if reduction == "mean":
        return gpu.inverse_mass(label, weight, ignore_index, n, x)
    mass = Scratch(f64, 1)
    args = (label, weight or x, weight is not None, ignore_index, n, 0, mass)
    return [Launch(inverse_mass, *args, units=1)], mass


# --- kernels --------------------------------------------------------------------------------------


def label_losses(
    x,
    label,
    weight,
    weighted,
    ignored,
    scores,
    n,
    inner,
    positions,
    each,
    y,
    partial,
    tops,
    sums,
    lo,
    hi,
    lane,
):
    """Units are blocks of positions. `scores`: x is not normalised; `each`: y takes every loss."""
    top = offset(tops, lane * BLOCK)
    log_sum = offset(sums, lane * BLOCK)
    for block in range(lo, hi):
        total = np.float64(0.0)
        mass = np.float64(0.0)
        p = block * BLOCK
        last = min(p + BLOCK, positions)
        while p < last:
            outer = p // inner
            column = p - outer * inner
            count = min(last - p, inner - column)
            at = offset(x, outer * n * inner + column)
            if scores:
                log_sums(at, n, inner, count, top, log_sum)
            for c in range(count):
                k = np.int64(label[p + c])
                loss = np.float64(0.0)
                if k != ignored:
                    loss = np.float64(np.nan)
                    if k >= 0 and k < n:
                        w = np.float64(weight[k] if weighted else 1.0)
                        loss = w * ((log_sum[c] if scores else np.float64(0.0)) - at[k * inner + c])
                        mass += w
                total += loss
                if each:
                    y[p + c] = loss
            p += count
        partial[2 * block] = total
        partial[2 * block + 1] = mass


def log_sums(x, n, inner, count, top, log_sum):
    """log(sum(exp(x))) of each of `count` neighbouring columns."""
    if inner == 1:
        centre = largest_of(x, n)
        log_sum[0] = math.log(exponential_sum(x, centre, n)) + centre
    else:
        column_exponential_sums(x, n, inner, count, top, log_sum)
        for c in range(count):
            log_sum[c] = math.log(log_sum[c]) + top[c]


def total_loss(y, partial, blocks, mean, lo, hi):
    total = np.float64(0.0)
    mass = np.float64(0.0)
    for b in range(blocks):
        total += partial[2 * b]
        mass += partial[2 * b + 1]
    y[0] = total / mass if mean else total


def inverse_mass(label, weight, weighted, ignored, n, count, mass, lo, hi):
    """1 / the sum of the weights of the first `count` labels, one after the other; 1 for none."""
    total = np.float64(0.0)
    for p in range(count):
        k = np.int64(label[p])
        if k != ignored and k >= 0 and k < n:
            total += np.float64(weight[k] if weighted else 1.0)
    mass[0] = 1.0 / total if count > 0 else 1.0


def factor_of(k, p, gy, gy_step, weight, weighted, mass, ignored, n):
    """What a position's gradient is multiplied by; NaN where its label is out of range."""
    if k == ignored:
        return np.float64(0.0)
    if k < 0 or k >= n:
        return np.float64(np.nan)
    w = np.float64(weight[k] if weighted else 1.0)
    return gy[p * gy_step] * w * mass[0]


def cross_entropy_grad_rows(x, label, gy, gy_step, weight, weighted, mass, ignored, gx, n, lo, hi):
    for p in range(lo, hi):
        target = offset(gx, p * n)
        k = np.int64(label[p])
        factor = rounded(factor_of(k, p, gy, gy_step, weight, weighted, mass, ignored, n))
        if k >= 0 and k < n and k != ignored:
            softmax_row(offset(x, p * n), target, n)
            for i in range(n):
                target[i] *= factor
            target[k] -= factor
        else:
            for i in range(n):
                target[i] = factor


def cross_entropy_grad_columns(
    x, label, gy, gy_step, weight, weighted, mass, ignored, gx, n, inner, tops, sums, lo, hi, lane
):
    top = offset(tops, lane * COLUMNS)
    total = offset(sums, lane * COLUMNS)
    p = lo
    while p < hi:
        outer = p // inner
        count = min(COLUMNS, hi - p, (outer + 1) * inner - p)
        start = outer * n * inner + p - outer * inner
        column_softmax(offset(x, start), offset(gx, start), n, inner, count, top, total)
        for c in range(count):
            k = np.int64(label[p + c])
            top[c] = factor_of(k, p + c, gy, gy_step, weight, weighted, mass, ignored, n)
        for row in range(n):
            target = offset(gx, start + row * inner)
            for c in range(count):
                target[c] *= top[c]
        for c in range(count):
            target = offset(gx, start + c)
            k = np.int64(label[p + c])
            if k >= 0 and k < n and k != ignored:
                target[k * inner] -= top[c]
            else:
                for row in range(n):
                    target[row * inner] = top[c]
        p += count


def nll_grad(label, gy, gy_step, weight, weighted, mass, ignored, gx, n, inner, lo, hi):
    for p in range(lo, hi):
        outer = p // inner
        target = offset(gx, outer * n * inner + p - outer * inner)
        k = np.int64(label[p])
        factor = rounded(factor_of(k, p, gy, gy_step, weight, weighted, mass, ignored, n))
        inside = k >= 0 and k < n and k != ignored
        rest = 0.0 if inside else factor
        for row in range(n):
            target[row * inner] = rest
        if inside:
            target[k * inner] = -factor
