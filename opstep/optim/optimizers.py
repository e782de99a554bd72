"""Optimizers: hyperparameters, what is kept of each param, and the update, as text.

An update is a graph of a param `p`, its gradient `g`, the states that are kept of it, and scalars
of the step. It defines ``new_p`` and ``new_<state>``. Formulas, their order and the defaults are
those of torch.optim, where it has the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

from opstep.optim.checks import Checked, complement, flag, number, pair, refuse
from opstep.optim.schedules import Schedule
from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError, SettingError, UnknownName
from opstep.runtime.ir.types import TensorType, f32

Rate = float | Schedule | str
Decay = float | Mapping[str, float]


def _mean(x: str, g: str, weight: str | float) -> str:
    """``new_x``: the mean `x` moved by `weight` towards `g`, from the nearer end, as torch.lerp."""
    off = f"{x}_off = sub({g}, {x})\n"
    if isinstance(weight, float) and weight >= 0.5:
        rest = complement(weight)
        return f"{off}{x}_missed = mul({x}_off, {rest})\nnew_{x} = sub({g}, {x}_missed)\n"
    return f"{off}{x}_moved = mul({x}_off, {weight})\nnew_{x} = add({x}, {x}_moved)\n"


def _mean_of_squares(g: str, beta: float) -> str:
    """``new_v``: beta * v + (1 - beta) * g**2."""
    return f"""\
        g2 = square({g})
        v_share = mul(g2, {complement(beta)})
        v_left = mul(v, {beta})
        new_v = add(v_left, v_share)
        """


class Rates(NamedTuple):
    """Scalars of a step: their names, and the statements that compute them in f64 from `lr`, the
    learning rate, `t`, the number of this step, from 1, and `first`, whether it is the first.
    """

    names: tuple[str, ...] = ("lr",)
    text: str = ""


@dataclass(frozen=True)
class Optimizer(Checked):
    """What all have. `lr`: a number, a `Schedule`, or the name of a scalar state, or of a graph
    without inputs, that gives it. `weight_decay`: for all params, or by patterns of their names, of
    which the first that fits counts: ``{"*.b": 0.0, "*": 0.01}``; where none fits, there is none.

    One of your own derives from this class, and has a `name`, a `title`, `states` and `update`.
    """

    lr: Rate = 1e-3
    weight_decay: Decay = field(default=0.0, kw_only=True)

    name: ClassVar[str]
    title: ClassVar[str]  # its name and source
    decoupled: ClassVar[bool] = False  # whether decay shrinks params, and is not added to gradients

    def __post_init__(self) -> None:
        if not isinstance(self.lr, Schedule | str):
            self._check(number, "lr")
        decay = self.weight_decay
        if isinstance(decay, Mapping):
            checked = {k: number(f"weight_decay[{k!r}]", v) for k, v in decay.items()}
            self._set("weight_decay", checked)
        else:
            self._set("weight_decay", number("weight_decay", decay))

    def states(self, t: TensorType) -> dict[str, TensorType]:
        """What is kept of a param of this type, by the last part of its name."""
        raise NotImplementedError

    def rates(self) -> Rates:
        """Scalars that `update` takes: the learning rate, if nothing else is said."""
        return Rates()

    def update(self, t: TensorType, decays: bool) -> str:
        """Statements that compute ``new_p``, and ``new_m`` for a state `m`, from the param `p`, its
        gradient `g`, the states and the scalars; all are of the element type of `t`. With `decays`,
        there is one more scalar: `keep`, the factor that decay shrinks params by, where it is
        decoupled, or else `decay`.
        """
        raise NotImplementedError


def _penalised(decays: bool) -> tuple[str, str]:
    """What stands for the gradient once decay was added to it, and the statements."""
    if not decays:
        return "g", ""
    return "slope", "penalty = mul(p, decay)\nslope = add(g, penalty)\n"


def _shrunk(decays: bool) -> tuple[str, str]:
    """What stands for the param once decay has shrunk it, and the statement."""
    return ("kept", "kept = mul(p, keep)\n") if decays else ("p", "")


@dataclass(frozen=True)
class SGD(Optimizer):
    """``torch.optim.SGD``: momentum is Polyak's, with Nesterov's as Sutskever et al. 2013
    (proceedings.mlr.press/v28/sutskever13) have it; the first gradient is not damped.

    m = momentum * m + (1 - dampening) * g;  p = p - lr * m, or p - lr * (g + momentum * m)
    """

    momentum: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0

    name = "sgd"
    title = "SGD"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(number, "momentum", below=1.0)
        self._check(number, "dampening")
        if flag("nesterov", self.nesterov) and (not self.momentum or self.dampening):
            refuse("nesterov wants a momentum above 0, and no dampening")

    def states(self, t: TensorType) -> dict[str, TensorType]:
        return {"momentum": t} if self.momentum else {}

    def rates(self) -> Rates:
        if not (self.momentum and self.dampening):
            return Rates()
        share = f"damped = full(shape=[], value={complement(self.dampening)}, dtype=f64)\n"
        return Rates(("lr", "share"), f"{share}share = where(first, 1.0, damped)\n")

    def update(self, t: TensorType, decays: bool) -> str:
        g, text = _penalised(decays)
        if self.momentum:
            added = g
            if self.dampening:
                added = "damped"
                text += f"damped = mul({g}, share)\n"
            text += f"left = mul(momentum, {self.momentum})\nnew_momentum = add(left, {added})\n"
            if self.nesterov:
                text += f"ahead = mul(new_momentum, {self.momentum})\n"
                text += f"direction = add({g}, ahead)\n"
                g = "direction"
            else:
                g = "new_momentum"
        return f"{text}change = mul({g}, lr)\nnew_p = sub(p, change)\n"


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """``torch.optim.RMSprop`` (Tieleman and Hinton 2012, lecture 6.5 of "Neural Networks for
    Machine Learning"; centered: Graves 2013, arXiv:1308.0850).

    v = alpha * v + (1 - alpha) * g**2;  p = p - lr * g / (sqrt(v) + eps)

    `centered`: the square of the mean gradient is taken from v. With `momentum`, the quotient is
    accumulated as in `SGD`.
    """

    lr: Rate = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    name = "rmsprop"
    title = "RMSprop (Tieleman and Hinton 2012)"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(number, "alpha", below=1.0)
        self._check(number, "eps")
        self._check(number, "momentum", below=1.0)
        flag("centered", self.centered)

    def states(self, t: TensorType) -> dict[str, TensorType]:
        names = ["v", *["mean"] * self.centered, *["momentum"] * bool(self.momentum)]
        return dict.fromkeys(names, t)

    def update(self, t: TensorType, decays: bool) -> str:
        g, text = _penalised(decays)
        text += _mean_of_squares(g, self.alpha)
        variance = "new_v"
        if self.centered:
            text += _mean("mean", g, complement(self.alpha))
            text += "mean2 = square(new_mean)\nvariance = sub(new_v, mean2)\n"
            variance = "variance"
        text += f"root = sqrt({variance})\ndenominator = add(root, {self.eps})\n"
        text += f"direction = div({g}, denominator)\n"
        moved = "direction"
        if self.momentum:
            text += f"left = mul(momentum, {self.momentum})\nnew_momentum = add(left, direction)\n"
            moved = "new_momentum"
        return f"{text}change = mul({moved}, lr)\nnew_p = sub(p, change)\n"


@dataclass(frozen=True)
class Adam(Optimizer):
    """``torch.optim.Adam`` (Kingma and Ba 2015, arXiv:1412.6980).

    m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g**2
    p = p - lr / (1 - beta1**t) * m / (sqrt(v) / sqrt(1 - beta2**t) + eps)

    What depends on t alone is computed in f64: in f32, 1 - 0.999**t has lost four digits.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    name = "adam"
    title = "Adam (Kingma and Ba 2015, arXiv:1412.6980)"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(pair, "betas")
        self._check(number, "eps")

    def states(self, t: TensorType) -> dict[str, TensorType]:
        return {"m": t, "v": t}

    def rates(self) -> Rates:
        beta1, beta2 = self.betas
        text = f"""\
            power1 = pow({beta1}, t)
            weight1 = sub(1.0, power1)
            rate = div(lr, weight1)
            power2 = pow({beta2}, t)
            weight2 = sub(1.0, power2)
            bias = sqrt(weight2)
            """
        return Rates(("rate", "bias"), text)

    def update(self, t: TensorType, decays: bool) -> str:
        start, text = _shrunk(decays) if self.decoupled else ("p", "")
        g, penalty = ("g", "") if self.decoupled else _penalised(decays)
        beta1, beta2 = self.betas
        text += penalty + _mean("m", g, complement(beta1))
        text += _mean_of_squares(g, beta2)
        return f"""\
            {text}
            root = sqrt(new_v)
            unbiased = div(root, bias)
            denominator = add(unbiased, {self.eps})
            direction = div(new_m, denominator)
            change = mul(direction, rate)
            new_p = sub({start}, change)
            """


@dataclass(frozen=True)
class AdamW(Adam):
    """``torch.optim.AdamW`` (Loshchilov and Hutter 2019, arXiv:1711.05101): `Adam`, but decay is
    apart: p is first multiplied by 1 - lr * weight_decay.
    """

    weight_decay: Decay = field(default=1e-2, kw_only=True)

    name = "adamw"
    title = "AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101)"
    decoupled = True


@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2).

    p = p * (1 - lr * weight_decay) - lr * sign(beta1 * m + (1 - beta1) * g)
    m = beta2 * m + (1 - beta2) * g
    """

    lr: Rate = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)

    name = "lion"
    title = "Lion (Chen et al. 2023, arXiv:2302.06675)"
    decoupled = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(pair, "betas")

    def states(self, t: TensorType) -> dict[str, TensorType]:
        return {"m": t}

    def update(self, t: TensorType, decays: bool) -> str:
        start, text = _shrunk(decays)
        beta1, beta2 = self.betas
        return f"""\
            {text}
            old = mul(m, {beta1})
            added = mul(g, {complement(beta1)})
            mixed = add(old, added)
            direction = sign(mixed)
            change = mul(direction, lr)
            new_p = sub({start}, change)
            {_mean("m", "g", complement(beta2))}
            """


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """``torch.optim.Adafactor`` (Shazeer and Stern 2018, arXiv:1804.04235): of a param of rank 2 or
    more, the mean squares of the gradient's rows and columns are kept, in place of all elements'.

    weight = t**beta2_decay;  rho = min(lr, 1 / sqrt(t));  rms(x) = norm(x) / sqrt(elements of x)
    row, col = both moved by `weight` towards the mean of g**2 along the last axis, the one before
    u = g / sqrt(row * col / mean(row))
    p = p * (1 - lr * weight_decay) - max(eps[1], rms(p)) * rho * u / max(1, rms(u) / d)

    ``eps[0]`` keeps divisors from 0; None is the distance from 1 to the next number of the type.
    """

    lr: Rate = 1e-2
    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0

    name = "adafactor"
    title = "Adafactor (Shazeer and Stern 2018, arXiv:1804.04235)"
    decoupled = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.beta2_decay, bool) or not -1e3 <= self.beta2_decay <= 0:
            raise SettingError("beta2_decay", self.beta2_decay, "a number up to 0, such as -0.8")
        self._set("beta2_decay", float(self.beta2_decay))
        small, scale = self.eps if isinstance(self.eps, tuple | list) else (self.eps, None)
        small = small if small is None else number("eps[0]", small)
        self._set("eps", (small, number("eps[1]", scale)))
        self._check(number, "d", low=1.0)

    def states(self, t: TensorType) -> dict[str, TensorType]:
        if t.rank < 2:
            return {"v": t}
        *outer, rows, columns = t.shape
        return {"row": t.with_shape([*outer, rows, 1]), "col": t.with_shape([*outer, 1, columns])}

    def rates(self) -> Rates:
        text = f"""\
            weight = pow(t, {self.beta2_decay})
            slow = rsqrt(t)
            rho = minimum(lr, slow)
            """
        return Rates(("rho", "weight"), text)

    def update(self, t: TensorType, decays: bool) -> str:
        start, text = _shrunk(decays)
        eps = self.eps[0]
        if eps is None:
            eps = 2.0**-23 if t.dtype is f32 else 2.0**-52
        text += "g2 = square(g)\n"
        if t.rank < 2:
            text += _mean("v", "g2", "weight")
            estimate = "new_v"
        else:
            text += "row_g2 = mean(g2, axes=[-1], keepdims=true)\n"
            text += _mean("row", "row_g2", "weight")
            text += "col_g2 = mean(g2, axes=[-2], keepdims=true)\n"
            text += _mean("col", "col_g2", "weight")
            text += "product = mul(new_row, new_col)\n"
            text += "total = mean(new_row, axes=[-2], keepdims=true)\n"
            text += f"divisor = clip(total, low={eps})\nestimate = div(product, divisor)\n"
            estimate = "estimate"
        dims = ", ".join(map(str, t.shape))
        return f"""\
            {text}
            count = extent(of=[{dims}], dtype={t.dtype})
            size = sqrt(count)
            length = norm(p)
            rms = div(length, size)
            scale = clip(rms, low={self.eps[1]})
            alpha = mul(scale, rho)
            positive = clip({estimate}, low={eps * eps})
            factor = rsqrt(positive)
            u = mul(g, factor)
            u_length = norm(u)
            u_rms = div(u_length, size)
            ratio = div(u_rms, {self.d})
            damping = clip(ratio, low=1.0)
            rate = div(alpha, damping)
            change = mul(u, rate)
            new_p = sub({start}, change)
            """


OPTIMIZERS: dict[str, type[Optimizer]] = {
    kind.name: kind for kind in (SGD, RMSprop, Adam, AdamW, Lion, Adafactor)
}


def optimizer(
    kind: str | Optimizer, hyperparameters: Mapping[str, Any], options: Iterable[str] = ()
) -> Optimizer:
    """The optimizer of that name ("adamw", in any case), with these hyperparameters. `options`:
    what else could have been meant; it is suggested where it is near, and not listed.
    """
    if isinstance(kind, Optimizer):
        if hyperparameters:
            name = next(iter(hyperparameters))
            hint = f"give it to {type(kind).__name__}(…)"
            raise InputError(f"{name} beside an optimizer that has its own", hint=hint)
        return kind
    if not isinstance(kind, str):
        raise SettingError("optimizer", kind, f"one of {', '.join(OPTIMIZERS)}")
    found = OPTIMIZERS.get(kind.lower())
    if found is None:
        raise UnknownName(f"there is no optimizer {kind}", kind.lower(), OPTIMIZERS)
    known = [f.name for f in fields(found)]
    for name in hyperparameters:
        if name not in known:
            message = f"{found.name} has no hyperparameter {name}"
            candidates = [*known, *options] if did_you_mean(name, options) else known
            raise UnknownName(message, name, candidates, "it has:")
    return found(**hyperparameters)
