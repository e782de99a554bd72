"""Losses of two tensors of the same shape: mse, l1, huber, smooth_l1, binary cross entropy, kl_div.

A declaration has `scalar`, the loss of one pair, and `slope`, its derivative with respect to x (and
to the target) as IR. `reduction` is "mean", "sum" or "none"; sums are computed in the data's type
within blocks, and in f64 over blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.math.fastmath import exp, log, log1p
from opstep.kernels.pointwise.cuda_elementwise import elementwise
from opstep.kernels.reduce.reduce import number_of
from opstep.kernels.reduce.runs import RUN, sum_of_terms
from opstep.kernels.rows.cuda_loss import pair_sum
from opstep.kernels.rules.relations import by_reduction
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Launch, Scratch
from opstep.runtime.ir.faults import Faults, Rule, infinite
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import f64

BLOCK = RUN  # pairs whose losses are summed in the data's type
UNIT = 16 * BLOCK  # pairs whose sum is kept for the second launch


class PairLoss(Op):
    """Base. Numeric attributes reach `scalar` behind x and target, in the order declared."""

    faults = Faults(by_reduction)

    choices = {"reduction": ("none", "sum", "mean")}

    @classmethod
    def infer(cls, x, target, *, reduction, **attrs):
        if x.shape != target.shape:
            raise Mismatch(
                f"{x} and {target} differ in shape", 1, hint="broadcast one of them to the other's"
            )
        if reduction not in cls.choices["reduction"]:
            hint = f"there are {', '.join(cls.choices['reduction'])}"
            raise Mismatch(f"no reduction {reduction!r}", "reduction", hint=hint)
        cls.check(**attrs)
        return x if reduction == "none" else x.with_shape(())

    @staticmethod
    def check(**attrs) -> None:
        """Raises Mismatch where numeric attributes make no sense."""

    @classmethod
    def oracle(cls, x, target, *, reduction, **attrs):
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = cls.each(x, target, **attrs)
            if reduction == "none":
                return losses
            total = np.sum(losses)
            if reduction == "batchmean":
                return total / np.float64(x.shape[0] if x.ndim else 1)
            return total / np.float64(x.size) if reduction == "mean" else total

    @classmethod
    def cpu(cls, x, target, y, *, reduction, **attrs):
        numbers = tuple(float(v) for v in attrs.values())
        if reduction == "none":
            kernel = each_loss(cls.scalar, cls.name, len(numbers))
            return Launch(kernel, x, target, y, *numbers, units=x.size)
        count = {"sum": 1, "mean": x.size, "batchmean": x.shape[0] if x.rank else 1}[reduction]
        blocks = -(-x.size // UNIT)
        partial = Scratch(f64, max(blocks, 1))
        kernel = summed_losses(cls.scalar, cls.name, len(numbers))
        args = (x, target, partial, *(numbers or (0.0,)), x.size)
        grain = max(1, 32768 // UNIT)
        return [
            Launch(kernel, *args, units=blocks, grain=grain),
            Launch(share_of_total, partial, y, blocks, count, units=1),
        ]

    @classmethod
    def cuda(cls, x, target, y, *, reduction, **attrs):
        numbers = tuple(float(v) for v in attrs.values())
        if reduction == "none":
            each = elementwise(cls.scalar, cls.name, (x, target), y, numbers) if x.size else None
            return each or cls.cpu(x, target, y, reduction=reduction, **attrs)
        if x.size == 0:
            return cls.cpu(x, target, y, reduction=reduction, **attrs)
        count = {"sum": 1, "mean": x.size, "batchmean": x.shape[0] if x.rank else 1}[reduction]
        return pair_sum(cls.scalar, cls.name, x, target, y, numbers, count)

    def flops(x, target, **attrs):
        return 3 * x.size

    @classmethod
    def grad(cls, g, operands, results, grads, *, reduction, **attrs):
        x, target = operands
        gy = grads[0]
        if reduction == "mean":
            gy = g.div(gy, number_of(g, results_of(x, target), None, gy.dtype))
        elif reduction == "batchmean" and results_of(x, target).type.rank:
            gy = g.div(gy, number_of(g, results_of(x, target), (0,), gy.dtype))
        by_x, by_target = cls.slopes(g, x, target, **attrs)
        return tuple(
            g.to_dtype(g.mul(slope(), gy), o.dtype) if is_variable(o) else None
            for slope, o in ((by_x, x), (by_target, target))
        )


def is_variable(operand) -> bool:
    """Whether a gradient can flow to it: literals and integers have none."""
    return hasattr(operand, "type") and operand.dtype.is_float


def results_of(x, target):
    """The operand that is no literal (then the other one is a scalar too)."""
    return x if hasattr(x, "type") else target


class Difference(PairLoss):
    """Base of losses of x - target: the slope by the target is the slope by x, negated."""

    @classmethod
    def slopes(cls, g, x, target, **attrs):
        return (
            lambda: cls.slope(g, g.sub(x, target), **attrs),
            lambda: g.neg(cls.slope(g, g.sub(x, target), **attrs)),
        )


class mse_loss(Difference):
    """The squared difference of x and target."""

    signature = 'mse_loss(x: F, target: F, *, reduction: str = "mean")'
    formula = "(x - target)**2"
    source = "torch.nn.functional.mse_loss"

    def each(x, target):
        return (x - target) ** 2

    def scalar(x, target):
        return (x - target) * (x - target)

    def slope(g, difference):
        return g.mul(difference, 2.0)


class l1_loss(Difference):
    """The absolute difference of x and target; its gradient is 0 where they are equal."""

    signature = 'l1_loss(x: F, target: F, *, reduction: str = "mean")'
    formula = "abs(x - target)"
    source = "torch.nn.functional.l1_loss"

    def each(x, target):
        return np.abs(x - target)

    def scalar(x, target):
        return abs(x - target)

    def slope(g, difference):
        return g.sign(difference)


class huber_loss(Difference):
    """Half the squared difference up to `delta`, linear beyond."""

    signature = 'huber_loss(x: F, target: F, *, reduction: str = "mean", delta: float = 1.0)'
    formula = "d**2/2 where d = abs(x - target) <= delta, else delta*(d - delta/2)"
    source = "torch.nn.functional.huber_loss"

    def check(*, delta):
        if not delta > 0.0:
            raise Mismatch(f"delta={delta} is not above 0", "delta")

    def each(x, target, delta):
        d = np.abs(x - target)
        return np.where(d <= delta, d * d / 2, delta * (d - delta / 2))

    def scalar(x, target, delta):
        d = abs(x - target)
        return 0.5 * d * d if d <= delta else delta * (d - 0.5 * delta)

    def slope(g, difference, *, delta):
        return g.clip(difference, low=-delta, high=delta)


class smooth_l1_loss(Difference):
    """The absolute difference, quadratic below `beta`; equals huber_loss divided by beta."""

    signature = 'smooth_l1_loss(x: F, target: F, *, reduction: str = "mean", beta: float = 1.0)'
    formula = "d**2/(2*beta) where d = abs(x - target) < beta, else d - beta/2"
    source = "torch.nn.functional.smooth_l1_loss"

    def check(*, beta):
        if not beta >= 0.0:
            raise Mismatch(f"beta={beta} is below 0", "beta")

    def each(x, target, beta):
        d = np.abs(x - target)
        return np.where(d < beta, d * d / 2 / beta, d - beta / 2) if beta else d

    def scalar(x, target, beta):
        d = abs(x - target)
        return 0.5 * d * d / beta if d < beta else d - 0.5 * beta

    def slope(g, difference, *, beta):
        if beta == 0.0:
            return g.sign(difference)
        return g.clip(g.div(difference, beta), low=-1.0, high=1.0)


class binary_cross_entropy(PairLoss):
    """Binary cross entropy of the probability x and the target (0, 1 or between); logs are clamped
    at -100.
    """

    signature = 'binary_cross_entropy(x: F, target: F, *, reduction: str = "mean")'
    formula = "-(target*log(x) + (1 - target)*log(1 - x))"
    source = "torch.nn.functional.binary_cross_entropy"
    faults = Faults(
        by_reduction,
        Rule(
            "log of a negative number: a probability below 0 or above 1",
            lambda x, *_, **__: (x < 0) | (x > 1),
        ),
    )

    def each(x, target):
        no, yes = np.maximum(np.log1p(-x), -100.0), np.maximum(np.log(x), -100.0)
        return (target - 1) * no - target * yes

    def scalar(x, target):
        yes = log(x)
        no = log1p(-x)
        yes = -100.0 if yes < -100.0 else yes
        no = -100.0 if no < -100.0 else no
        return (target - 1.0) * no - target * yes

    def slopes(g, x, target):
        def by_x():
            spread = g.mul(x, g.sub(1.0, x))
            return g.div(g.sub(x, target), g.clip(spread, low=1e-12))

        def by_target():
            return g.sub(g.log1p(g.neg(x)), g.log(x))

        return by_x, by_target


class binary_cross_entropy_with_logits(PairLoss):
    """binary_cross_entropy of sigmoid(x), without overflow and loss of accuracy."""

    signature = 'binary_cross_entropy_with_logits(x: F, target: F, *, reduction: str = "mean")'
    formula = "((1 - target)*x where x > 0, else -target*x) + log(1 + exp(-abs(x)))"
    source = "torch.nn.functional.binary_cross_entropy_with_logits"
    faults = Faults(
        by_reduction,
        Rule(
            "0 times infinity",
            lambda x, target, **_: infinite(x) & (target == (x > 0)) | (x == 0) & infinite(target),
        ),
    )

    def each(x, target):
        line = np.where(x > 0, (1 - target) * x, -target * x)
        return line + np.log1p(np.exp(-np.abs(x)))

    def scalar(x, target):
        line = (1.0 - target) * x if x > 0.0 else -target * x
        return line + log1p(exp(-abs(x)))

    def slopes(g, x, target):
        return lambda: g.sub(g.sigmoid(x), target), lambda: g.neg(x)


class kl_div(PairLoss):
    """The Kullback-Leibler divergence of x, a log probability, from the target (also one with
    `log_target`).

    "batchmean" divides the sum by the extent of axis 0.
    """

    signature = 'kl_div(x: F, target: F, *, reduction: str = "mean", log_target: bool = false)'
    formula = "target*(log(target) - x), or exp(target)*(target - x)"
    source = "torch.nn.functional.kl_div"
    faults = Faults(
        by_reduction,
        Rule(
            "log of a negative number: a target below 0",
            lambda x, target, *, log_target, **_: (None, (target < 0) & (not log_target)),
        ),
        Rule("0 times infinity", lambda x, target, **_: infinite(x) & (target == 0)),
    )
    choices = {"reduction": ("none", "sum", "mean", "batchmean")}

    def each(x, target, log_target):
        if log_target:
            return np.exp(target) * (target - x)
        return np.where(target == 0, 0.0, target * np.log(target)) - target * x

    def scalar(x, target, log_target):
        if log_target != 0.0:
            return exp(target) * (target - x)
        return (0.0 if target == 0.0 else target * log(target)) - target * x

    def slopes(g, x, target, *, log_target):
        def by_target():
            if log_target:
                scale = g.exp(target)
                return g.add(g.mul(scale, g.sub(target, x)), scale)
            return g.add(g.sub(g.log(target), x), 1.0)

        return lambda: g.neg(g.exp(target) if log_target else target), by_target


# --- kernels --------------------------------------------------------------------------------------


@cache
def each_loss(f: Callable, name: str, numbers: int) -> Callable:
    def plain(x, target, y, lo, hi):
        for i in range(lo, hi):
            y[i] = f(x[i], target[i])

    def with_one(x, target, y, p, lo, hi):
        for i in range(lo, hi):
            y[i] = f(x[i], target[i], p)

    kernel = (plain, with_one)[numbers]
    kernel.__name__ = name
    return kernel


@cache
def summed_losses(f: Callable, name: str, numbers: int) -> Callable:
    """Units are blocks of UNIT pairs, each summed to one f64."""

    def plain_term(x, target, p):
        return f(x, target)

    some_losses = sum_of_terms(f if numbers else plain_term)

    def kernel(x, target, partial, p, size, lo, hi):
        for unit in range(lo, hi):
            total = np.float64(0.0)
            end = min((unit + 1) * UNIT, size)
            for start in range(unit * UNIT, end, BLOCK):
                count = min(BLOCK, end - start)
                total += some_losses(offset(x, start), offset(target, start), p, count)
            partial[unit] = total

    kernel.__name__ = f"{name}_sum"
    return kernel


def share_of_total(partial, y, blocks, count, lo, hi):
    total = np.float64(0.0)
    for b in range(blocks):
        total += partial[b]
    y[0] = total / count
