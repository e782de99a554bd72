"""Faults of a training script that turn into no NaN: `linting` watches a run for them.

Each check is a class with its hooks, in `CHECKS`. What a check runs again runs on copies.
"""

from __future__ import annotations

from collections.abc import Collection

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
from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError

__all__ = ["CHECKS", "KINDS", "LintFinding", "Run", "linting"]

CHECKS: tuple[type[Check], ...] = (
    Broadcast, ClipBeforeUnscale, NoGradient, NotInOptimizer, Dead, EvalDiffers, FunctionGradient,
    Labels, Tied, LossStalls,
)  # fmt: skip
KINDS = tuple(c.kind for c in CHECKS)


def linting(excepted: Collection[str] = ()) -> Run:
    """All checks but those of kinds that are excepted. It is the listener of a `Session`, and sees
    a script's errors as its judge. Raises `InputError` for a kind that is none.

    with linting() as run, Session(tell, listeners=[run]):
        script.run(run)
    run.end()  # now `run.found` has all
    """
    for kind in excepted:
        if kind not in KINDS:
            text = f"lint has no kind {kind}; there are {', '.join(KINDS)}"
            raise InputError(text, hint=did_you_mean(kind, KINDS))
    return Run([c for c in CHECKS if c.kind not in excepted])
