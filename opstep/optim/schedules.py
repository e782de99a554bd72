"""Schedules of learning rates: each writes the graph that computes the rate of the present step.

The rate is computed in f64, from the number of steps that have been made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from opstep.optim.checks import Checked, number, refuse, whole


def _plus(result: str, product: str, number: float) -> str:
    """``result = product + number``, in one statement where the number is 0."""
    if not number:
        return f"{result} = {product}\n"
    return f"{result}_part = {product}\n{result} = add({result}_part, {number})\n"


@dataclass(frozen=True)
class Schedule(Checked):
    """A rate that may first rise from `start` to `lr` in a line, over `warmup` steps: step t has
    start + (lr - start) * t / warmup. What follows is what the kinds of schedule differ in.

    With ``start`` above 0 this is ``torch.optim.lr_scheduler.LinearLR(start_factor=start / lr)``
    in front of another one, joined by ``SequentialLR``; with 0, optax's ``warmup_*`` schedules.
    """

    lr: float
    warmup: int = field(default=0, kw_only=True)
    start: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        self._check(number, "lr")
        self._check(whole, "warmup", low=0)
        self._check(number, "start")
        if self.start and not self.warmup:
            refuse("start is where a warm-up begins, and there is none", "give warmup=, too")

    def text(self) -> str:
        """Statements that compute `lr` from `t`, the number of steps made, both f64."""
        if not self.warmup:
            return self.after_warmup("t", "lr")
        rise = (self.lr - self.start) / self.warmup
        return f"""\
            after = sub(t, {float(self.warmup)})
            {self.after_warmup("after", "later")}
            {_plus("rising", f"mul(t, {rise})", self.start)}
            warm = less(after, 0.0)
            lr = where(warm, rising, later)
            """

    def after_warmup(self, t: str, result: str) -> str:
        """Statements that compute `result` from `t`, which counts from the end of the warm-up."""
        raise NotImplementedError

    def about(self) -> str:
        """What the schedule does, in words."""
        head = f"{self.lr:g}"
        if self.warmup:
            head = f"from {self.start:g} to {self.lr:g} in {self.warmup} steps"
        return ", then ".join(filter(None, [head, self.about_after_warmup()]))

    def about_after_warmup(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Schedule):
    """`lr` in every step, after the warm-up."""

    def after_warmup(self, t: str, result: str) -> str:
        return f"{result} = full(shape=[], value={self.lr}, dtype=f64)\n"

    def about_after_warmup(self) -> str:
        return ""


@dataclass(frozen=True)
class _Falling(Schedule):
    """From `lr` to `end` at step `steps` (the warm-up counts), where it stays."""

    steps: int
    end: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(whole, "steps", low=1)
        self._check(number, "end")
        if self.steps <= self.warmup:
            refuse(
                f"a warm-up of {self.warmup} steps leaves none of {self.steps}",
                "steps counts those of the warm-up, too",
            )

    def _passed(self, t: str) -> str:
        """Statements for `passed`: the share of the fall that is behind, from 0 to 1."""
        return f"share = div({t}, {float(self.steps - self.warmup)})\n" + (
            "passed = clip(share, low=0.0, high=1.0)\n"
        )


@dataclass(frozen=True)
class Linear(_Falling):
    """`lr`, falling in a line to `end` at step `steps`: torch's ``LinearLR``, optax's
    ``linear_schedule``.
    """

    def after_warmup(self, t: str, result: str) -> str:
        return self._passed(t) + _plus(result, f"mul(passed, {self.end - self.lr})", self.lr)

    def about_after_warmup(self) -> str:
        return f"in a line to {self.end:g} at step {self.steps}"


@dataclass(frozen=True)
class Cosine(_Falling):
    """`lr`, falling as half a cosine to `end` at step `steps`: end + (lr - end) / 2 *
    (1 + cos(pi * passed)) (Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts);
    torch's ``CosineAnnealingLR(T_max=steps - warmup, eta_min=end)``.
    """

    def after_warmup(self, t: str, result: str) -> str:
        return self._passed(t) + (
            f"angle = mul(passed, {math.pi})\n"
            "cosine = cos(angle)\n"
            "height = add(cosine, 1.0)\n"
            + _plus(result, f"mul(height, {(self.lr - self.end) / 2})", self.end)
        )

    def about_after_warmup(self) -> str:
        return f"as half a cosine to {self.end:g} at step {self.steps}"


@dataclass(frozen=True)
class Step(Schedule):
    """`lr`, multiplied by `factor` after every `every` steps: torch's ``StepLR(step_size=every,
    gamma=factor)``.
    """

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(whole, "every", low=1)
        self._check(number, "factor")

    def after_warmup(self, t: str, result: str) -> str:
        return (
            f"count = floor_div({t}, {float(self.every)})\n"
            f"factor = pow({self.factor}, count)\n"
            f"{result} = mul(factor, {self.lr})\n"
        )

    def about_after_warmup(self) -> str:
        return f"times {self.factor:g} after every {self.every} steps"
