"""Two runs side by side: the first op, in the order of the program, that gives something else.

Results are compared as they were right behind their ops (`lockstep.py`), step by step
and from the same state; what does not fit the memory that may be used is compared in further runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opstep.api.inputs import inputs_for
from opstep.api.settings import RunSettings
from opstep.differing.comparison import Comparison, settings
from opstep.differing.lockstep import Lockstep, Side

if TYPE_CHECKING:
    from opstep.api.program import Program

__all__ = ["Comparison", "RunSettings", "diff", "settings"]

BUDGET = 1 << 30  # bytes of results that are kept at a time, of each side


def diff(
    a: Program, b: Program, graph: str | None = None, inputs: Mapping[str, Any] | None = None, *,
    settings_a: RunSettings = RunSettings(), settings_b: RunSettings = RunSettings(mode="debug"),
    graph_b: str | None = None, steps: int = 1, rtol: float = 0.0, atol: float = 0.0,
    chaos: int | None = None, budget: int = BUDGET,
) -> Comparison:  # fmt: skip
    """Runs a graph of `a` and one of `b` (which may be the same program) on the same inputs, and
    finds the first op whose result differs: in any bit, or by more than ``atol + rtol * abs(b)``.

    `chaos`: a seed for random delays of the streams of both. `budget`: bytes of results that are
    kept of each side at a time. Raises `OpstepError` where a program cannot be run at all.
    """
    given: Any = inputs_for(a, a.graph(graph), inputs)
    sides = (
        Side("a", a, graph, given, settings_a, chaos),
        Side("b", b, graph_b or graph, given, settings_b, chaos),
    )
    return Lockstep(*sides, rtol, atol, budget).run(steps)
