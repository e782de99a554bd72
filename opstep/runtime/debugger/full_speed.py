"""Whole steps of a run by the interpreter, where nothing can stop them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from opstep.runtime.debugger.activation import Activation, Point
from opstep.runtime.debugger.checks import Stop
from opstep.runtime.debugger.runner import Runner, commit, finished
from opstep.runtime.ir.diagnostics import OpstepError


class FullSpeed:
    """`spares_last`: the last step is run point by point, so that one can go back from its end.
    `outputs`: what the run has given, if it came to its end here.
    """

    def __init__(self, runner: Runner, spares_last: bool):
        self.runner = runner
        self.spares_last = spares_last
        self.outputs: Mapping[str, np.ndarray] | None = None

    def possible_at(self, at: tuple[Activation, Point]) -> bool:
        """Whether a step begins here, and nothing could stop it before its end. With control flow
        in it a step may take long: then it can be paused in the midst.
        """
        activation = at[0]
        if self.runner.machine.door is not None:  # ranks go on together
            return False
        begins = activation.parent is None
        begins = begins and self.runner.machine.history.cursor == activation.start
        return begins and not self.runner.breakpoints.armed and not activation.points.calls

    def run(self) -> Stop | None:
        """As many steps as can be; None where none can, or to go on from behind them."""
        runner, machine = self.runner, self.runner.machine
        history = machine.history
        here = history.next_point()
        if runner.stop_point.after_op or here is None or history.cursor != history.frontier:
            return None
        step = here[0].turn
        steps = machine.steps - step - self.spares_last
        if steps < 1 or not self.possible_at(here) or history.changes.affect(here[0].start):
            return None
        commit(machine)
        done, outputs, error = machine.host.run_fast(steps, self._may_continue)
        try:
            machine.begin_anew(step + done)
        except OpstepError as another:
            return runner.failed(error or another)
        if error is not None:  # what happened is looked at point by point
            return finished(runner.forwards(lambda at: False))
        if outputs is not None and not self.spares_last:
            self.outputs = outputs
            return Stop("end")
        if runner.mailbox.pausing.is_set():
            return runner.stopped("pause")
        return runner.checks.at_point()

    def _may_continue(self) -> bool:
        """Whether another step may be run: asked behind each."""
        return not self.runner.mailbox.serve() and not self.runner.breakpoints.armed
