"""``opstep hunt --break``: the terminal's debugger after the op that a finding names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.api.debugging import Debugger
from opstep.cli.debug.opening import asked, begun
from opstep.cli.debug.session import Session
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


def debug_finding(
    program: Program, values: dict[str, Any], found: Hunt, options: dict[str, Any]
) -> None:
    """Reads commands, from the terminal or a pipe, until they end. The program's named tensors are
    as they were before the bad step.
    """
    assert found.first is not None and found.step is not None
    debugger = FindingDebugger(
        found.first, program, found.graph, values, steps=options["steps"] - found.step,
        files=Path.cwd(), **{k: options[k] for k in ("device", "threads", "kernels")},
    )  # fmt: skip
    debugger.view = "auto"
    session = begun(Session, debugger)
    session.say(f"step {found.step}, {position_text(found.first)}; help lists the commands.")
    session.go(debugger.start)
    session.loop(asked(session))


def position_text(finding: Finding) -> str:
    if finding.op:
        return f"after {finding.op} {finding.value}"
    return f"before the first op: {finding.given}"
