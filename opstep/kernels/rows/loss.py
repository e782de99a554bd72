"""Losses of two tensors of the same shape: mse, l1, huber, smooth_l1, binary cross entropy, kl_div.

A declaration has `terms`, the loss of each pair, and `slope`, its derivative with respect to x (and
to the target). `reduction` is "mean", "sum" or "none".
"""

from __future__ import annotations

from opstep.kernels.reduce.reduce import number_of
from opstep.kernels.rules.faults import by_reduction
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.ir.faults import Faults, Rule, infinite
from opstep.runtime.ir.op import Mismatch


class PairLoss(RowComposite):
    """Base."""

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
    def define(cls, g, x, target, *, reduction, **attrs):
        each = cls.terms(g, x, target, **attrs)
        if reduction == "none":
            return each
        total = g.mean(each) if reduction == "mean" else g.sum(each)
        if reduction != "batchmean" or not x.shape or x.shape[0] == 1:
            return total
        return g.div(total, number_of(g, x, (0,), total.dtype))

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

    def terms(g, x, target):
        return g.square(g.sub(x, target))

    def slope(g, difference):
        return g.mul(difference, 2.0)


class l1_loss(Difference):
    """The absolute difference of x and target; its gradient is 0 where they are equal."""

    signature = 'l1_loss(x: F, target: F, *, reduction: str = "mean")'
    formula = "abs(x - target)"
    source = "torch.nn.functional.l1_loss"

    def terms(g, x, target):
        return g.abs(g.sub(x, target))

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

    def terms(g, x, target, *, delta):
        d = g.abs(g.sub(x, target))
        near, far = g.mul(g.mul(d, 0.5), d), g.mul(g.sub(d, 0.5 * delta), delta)
        return g.where(g.less_equal(d, delta), near, far)

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

    def terms(g, x, target, *, beta):
        d = g.abs(g.sub(x, target))
        if beta == 0.0:
            return d
        near = g.div(g.mul(g.mul(d, 0.5), d), beta)
        return g.where(g.less(d, beta), near, g.sub(d, 0.5 * beta))

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

    def terms(g, x, target):
        yes, no = g.clip(g.log(x), low=-100.0), g.clip(g.log1p(g.neg(x)), low=-100.0)
        return g.sub(g.mul(g.sub(target, 1.0), no), g.mul(target, yes))

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

    def terms(g, x, target):
        above, below = g.mul(g.sub(1.0, target), x), g.mul(g.neg(target), x)
        line = g.where(g.greater(x, 0.0), above, below)
        return g.add(line, g.log1p(g.exp(g.neg(g.abs(x)))))

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

    def terms(g, x, target, *, log_target):
        if log_target:
            return g.mul(g.exp(target), g.sub(target, x))
        own = g.where(g.equal(target, 0.0), 0.0, g.mul(target, g.log(target)))
        return g.sub(own, g.mul(target, x))

    def slopes(g, x, target, *, log_target):
        def by_target():
            if log_target:
                scale = g.exp(target)
                return g.add(g.mul(scale, g.sub(target, x)), scale)
            return g.add(g.sub(g.log(target), x), 1.0)

        return lambda: g.neg(g.exp(target) if log_target else target), by_target
