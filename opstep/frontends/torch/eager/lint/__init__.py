"""Faults of a training script that turn into no NaN: `linting` watches a run for them.

Each check is a class with its hooks, in `CHECKS`. What a check runs again runs on copies.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opstep.frontends.scripts.script import Judge
from opstep.frontends.torch.eager.lint.again import Dead, EvalDiffers, FunctionGradient
from opstep.frontends.torch.eager.lint.losses import Broadcast, Labels
from opstep.frontends.torch.eager.lint.recording import Check, LintFinding, Run
from opstep.frontends.torch.eager.lint.training import (
    ClipBeforeUnscale,
    LossStalls,
    NoGradient,
    NotInOptimizer,
    Tied,
)

__all__ = ["CHECKS", "KINDS", "Judging", "LintFinding", "Run", "linting"]

CHECKS: tuple[type[Check], ...] = (
    Broadcast, ClipBeforeUnscale, NoGradient, NotInOptimizer, Dead, EvalDiffers, FunctionGradient,
    Labels, Tied, LossStalls,
)  # fmt: skip
KINDS = tuple(c.kind for c in CHECKS)


def linting(excepted: Collection[str] = ()) -> Run:
    """All checks but those of kinds that are excepted. It is the listener of a `Session`:

    with linting() as run, Session(tell, native=False, listener=run):
        code = script.run(Judging(run, judge))
    run.end(code == 0)  # now `run.found` has all
    """
    run = Run()
    run.checks = [c(run) for c in CHECKS if c.kind not in excepted]
    return run


class Judging:
    """A script's judge that shows its errors to the checks first."""

    def __init__(self, run: Run, judge: Judge):
        self._run, self._judge = run, judge

    def cause_of(self, error: Exception) -> BaseException | None:
        self._run.ask("failed", error)
        return self._judge.cause_of(error)

    def advice(self, error: Exception) -> Any:
        return self._judge.advice(error)
