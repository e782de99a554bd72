"""A debugger that begins where a hunt found something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opstep.api.debugging import Debugger
from opstep.hunting.report import headline
from opstep.runtime.debugger.checks import Stop
from opstep.runtime.debugger.problems import Problem

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.hunting.report import Hunt
    from opstep.runtime.nan.findings import Finding


class FindingDebugger(Debugger):
    """A debugger whose first stop is behind the op of a finding; its run begins with the bad step,
    so positions are those of the hunt's replay.
    """

    def __init__(self, finding: Finding, program: Program, graph: str, inputs: Any, **options: Any):
        super().__init__(program, graph, inputs, **options)
        self.finding = finding

    def start(self) -> Stop:
        """Runs to it."""
        machine, finding = self.machine, self.finding
        while machine.history.cursor < finding.position and machine.forward():
            pass
        node, passed = None, machine.history.last_point() if finding.op else None
        if passed is not None:
            activation, point = passed
            step = activation.plan.steps[point.step]
            results = [activation.env[v][1] for v in step.results]
            node = next((n for n in results if n.name == finding.value), None)
        kind = "uninitialised" if finding.unwritten is not None else finding.bad
        problem = Problem(kind, headline(finding), node, machine.history.cursor)
        return self.stop_for(problem, passed is not None)


def chosen(found: Hunt, value: str = "", line: int = 0) -> Finding | None:
    """The finding of a value, at a line; the first one where there is none such."""
    all_of_them = [*found.findings, *found.only_masked]
    for finding in all_of_them:
        at = finding.where.line if finding.where else 0
        if value and finding.value == value and line in (0, at):
            return finding
    return all_of_them[0] if all_of_them else None
