"""A debugger that begins where a hunt found something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opstep.api.debugging import Debugger
from opstep.api.devices import entered_on
from opstep.hunting.report import headline
from opstep.runtime.debugger.activation import CALL, RETURN
from opstep.runtime.debugger.checks import Problem, Stop

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.hunting.report import Hunt
    from opstep.runtime.nan.findings import Finding
    from opstep.runtime.plan.plan import Plan


class FindingDebugger(Debugger):
    """A debugger whose first stop is after the op of a finding; its run begins with the bad step,
    so positions are those of the hunt's replay, but that it enters composites.
    """

    def __init__(self, finding: Finding, program: Program, graph: str, inputs: Any, **options: Any):
        super().__init__(program, graph, inputs, **options)
        self.finding = finding

    def start(self) -> Stop:
        """Runs to it."""
        machine, finding, position = self.machine, self.finding, 0
        while position < finding.position and machine.forward():
            position += self._is_past_op()
        node, passed = None, machine.history.last_point() if finding.op else None
        if passed is not None:
            activation, point = passed
            plan = activation.plan
            around = self._one_op(plan, point.frame)
            step = plan.steps[point.step] if around < 0 else plan.frames[around].step
            results = [activation.env[v][1] for v in step.results] if step else []
            node = next((n for n in results if n.name == finding.value), None)
        kind = "uninitialised" if finding.unwritten is not None else finding.bad
        problem = Problem(kind, headline(finding), node, machine.history.cursor)
        return self.stop_for(problem, passed is not None)

    def _is_past_op(self) -> bool:
        """Whether what a replay counts has just been passed: of a composite its last op."""
        history = self.machine.history
        last, following = history.last_point(), history.next_point()
        if last is None:
            return False
        plan, point = last[0].plan, last[1]
        around = self._one_op(plan, point.frame)
        if around < 0:  # in the text: before a composite's graph nothing has been computed
            within = following is not None and self._one_op(plan, following[1].frame) >= 0
            return not (point.kind == CALL and within)
        if following is None:
            return False
        return following[1].kind == RETURN and following[1].frame == around

    def _one_op(self, plan: Plan, frame: int) -> int:
        """The frame of a composite around a frame that is one op in the replay's plan; -1 if there
        is none. Those without a kernel are calls in each plan.
        """
        found = -1
        is_call: Any = entered_on(self.host.device.name, False)
        while frame > 0:
            step = plan.frames[frame].step
            if step is not None and not is_call(step.op, step.operand_types, step.attrs):
                found = frame
            frame = plan.frames[frame].parent
        return found


def chosen(found: Hunt, value: str = "", line: int = 0) -> Finding | None:
    """The finding of a value, at a line; the first one where there is none such."""
    all_of_them = [*found.findings, *found.only_masked]
    for finding in all_of_them:
        at = finding.where.line if finding.where else 0
        if value and finding.value == value and line in (0, at):
            return finding
    return all_of_them[0] if all_of_them else None
