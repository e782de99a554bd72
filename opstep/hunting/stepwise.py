"""A hunt in a run whose steps someone else makes, such as a loop of training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.api.job import Result
from opstep.api.program import Program
from opstep.api.settings import RunSettings
from opstep.hunting.report import Hunt, headline
from opstep.hunting.search import Hunter, SavedState
from opstep.runtime.interrupts import AT_ONCE, Held
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.nan.kinds import KINDS, Criteria

if TYPE_CHECKING:
    from opstep.api.job import Job
    from opstep.runtime.interpreter import Context


GROWTH = 100.0  # by which a param has grown that is reported


class Diverged(OpstepError):
    """A step gave a NaN or an infinity. `hunt` says where it was born; named tensors are as they
    were before that step.
    """

    def __init__(self, hunt: Hunt):
        summary = headline(hunt.first) if hunt.first else ", ".join(hunt.unrepeated)
        super().__init__(f"step {hunt.step} is bad: {summary}")
        self.hunt = hunt


class StepwiseHunt:
    """Runs one graph of a program, a step at a time, and hunts in it as `hunt` does. `ignored`:
    outputs that do not count.
    """

    def __init__(
        self, program: Program, graph: str, settings: RunSettings,
        kinds: Collection[str] | str = KINDS, ignored: Collection[str] = (),
    ):  # fmt: skip
        self.program = program
        self.graph = graph
        self.settings = settings
        criteria = replace(Criteria.parse(kinds), ignored=frozenset(ignored))
        self.hunter = Hunter(program, graph, settings, criteria, False, None)
        self._begun = False
        self._began_with: dict[str, float] = {}  # largest magnitudes of params
        self._saved: tuple[Context, SavedState] | None = None

    def step(
        self, inputs: Mapping[str, Any], number: int, on_step: Callable[[], Any],
        rows: Sequence[int] | None = None,
    ) -> Result:  # fmt: skip
        """One step, with these inputs. `number`: which one it is; `rows`: which of the data they
        are. Raises `Diverged`, and what `Program.run` raises.
        """
        hunter = self.hunter
        if not self._begun:
            self._began_with = self._magnitudes()
        hunter.result.data_rows = rows
        hunter.set_inputs(inputs)
        known = (hunter.criteria.slow or not self._begun) and hunter.replayed(number)
        if known:
            raise self._diverged()
        with (
            Held(AT_ONCE) as signals,
            self.program._running(
                self.graph, inputs, self.settings, (), None, hunter.flagged
            ) as job,
        ):
            state = self._state(job)
            bad = hunter.step(number, job, state, signals, False, first=not self._begun)
            self._begun = True
            if bad:
                raise self._diverged()
            hunter.commit(job, on_step, signals)
            return job.result()

    def _diverged(self) -> Diverged:
        """The outcome, with the params that had grown until then."""
        now, found = self._magnitudes(), self.hunter.result
        grown = [(n, a, now[n]) for n, a in self._began_with.items() if a and now[n] > GROWTH * a]
        found.grown = tuple(sorted(grown, key=lambda one: one[1] / one[2]))
        return Diverged(found)

    def _magnitudes(self) -> dict[str, float]:
        tensors, params = self.program.verified.tensors, self.program.params
        names = (n for n, d in tensors.items() if d.kind == "param" and d.type.dtype.is_float)
        return {n: float(np.abs(params[n]).max(initial=0)) for n in names}

    def _state(self, job: Job) -> SavedState:
        """The copies of named tensors while a step runs: one for all steps of a context."""
        if self._saved is None or self._saved[0] is not job.context:
            self.hunter.forget_children(job)
            self._saved = job.context, SavedState(self.program, self.settings.device, job.context)
        return self._saved[1]
