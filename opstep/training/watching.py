"""Conditions on the values of each step of training, and how their figures came to hold; a hunt for
NaNs and infinities in a run of training.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.hunting.stepwise import StepwiseHunt
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.graph import Apply, Name, Return
from opstep.runtime.nan.kinds import KINDS
from opstep.training.conditions import Condition, Figures, computed
from opstep.training.data import Stream
from opstep.training.loop import Metrics, Observer, Trainer
from opstep.training.recorded import RunRecord
from opstep.training.watched import VALUE, StepValue, Wanted, figures_of, step_values, watched

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.training.data import Rows


class TrainingHunt(Observer):
    """An observer under which each step raises flags. The first bad step ends the run as
    `Diverged`, which has the report; params and states are those before that step. Results that the
    step itself tests for being finite do not count. `kinds`: as of `hunt`. Of several ranks all end
    at the step that is bad on one.
    """

    def __init__(self, kinds: Collection[str] | str = KINDS):
        self.kinds = kinds
        self._trainer: Trainer | None = None
        self._hunt: StepwiseHunt | None = None

    def began(self, trainer: Trainer) -> None:
        self._trainer, self._hunt = trainer, None
        trainer.execute = self._execute

    def _execute(self, batch: Rows) -> Mapping[str, np.ndarray]:
        trainer = self._trainer
        assert trainer is not None
        if self._hunt is None or self._hunt.program is not trainer.program:
            self._hunt = self._new_hunt(trainer)
        batches, at = trainer.batches, trainer.position
        rows = None if isinstance(batches, Stream) else batches.rows(at).tolist()
        result = self._hunt.step(batch, trainer.step, trainer.count, rows)
        return dict(zip(result.names, result.outputs, strict=True))

    def _new_hunt(self, trainer: Trainer) -> StepwiseHunt:
        program, graph = trainer.program, trainer.graph
        body = program.graphs[graph].body
        (returned,) = (s for s in body if isinstance(s, Return))
        ignored = {*figures_of(v.text for v in returned.values)}
        for s in body:  # such as the norm of gradients, where a step skips those of a scaled loss
            if isinstance(s, Apply) and s.callee.text == "isfinite":
                ignored.update(o.text for o in s.operands if isinstance(o, Name))
        found = StepwiseHunt(program, graph, trainer.settings.run, self.kinds, ignored)
        found.hunter.any_of_us = trainer.ask_others or bool
        return found


HISTORY = 12  # steps of which figures are told
TOLD = 3  # values that are told with their history


@dataclass(frozen=True)
class Trip:
    """A condition that holds. `target`: the value that its pattern matched, "" without a pattern;
    `history`: of each figure, as it is written in the condition, the last steps and its values.
    """

    condition: str
    target: str
    place: str
    history: dict[str, list[tuple[int, float]]]

    @property
    def figures(self) -> str:
        return ", ".join(f"{f} is {h[-1][1]:.4g}" for f, h in self.history.items())


class Tripped(OpstepError):
    """Conditions hold after a step of training, which has taken effect: `step`, counted from 0. On
    a rank that has no `trips` they hold on another one.
    """

    def __init__(self, step: int, trips: Sequence[Trip]):
        of = trips[0] if trips else None
        told = f"{of.condition} holds: {of.figures}" if of else "a condition holds on another rank"
        super().__init__(f"step {step}: {told}")
        self.step = step
        self.trips = tuple(trips)

    def record(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"step": self.step, "conditions": [asdict(trip) for trip in self.trips]}

    def report(self) -> str:
        """In words, with the history of the figures."""
        lines = []
        for trip in self.trips[:TOLD]:
            target = f", for {trip.target}" if trip.target else ""
            lines.append(f"step {self.step}: {trip.condition} holds{target}")
            lines += [f"  in {trip.place}"] * bool(trip.place)
            for figure, history in trip.history.items():
                lines.append(f"  {figure} by step:")
                lines += [f"    {step:>6}  {value:.4g}" for step, value in history]
        if len(self.trips) > TOLD:
            others = ", ".join(t.target for t in self.trips[TOLD:])
            lines.append(f"it holds for {len(self.trips) - TOLD:,} more: {others}")
        return "\n".join(lines)


def stop_when_wrong(trainer: Trainer, hunt: bool, watch: str | Sequence[str]) -> None:
    """Adds observers that end a run which goes wrong, behind those that record it."""
    conditions = [watch] if isinstance(watch, str) else list(watch)
    if hunt:
        trainer.observers.append(TrainingHunt())
    if conditions:
        observer = Watch(*conditions)
        observer.install(trainer)
        trainer.observers.append(observer)


@dataclass
class _Watched:
    """A condition, asked of one target. `keys`: by name in it the figure among the step's results,
    or "" where it is computed of the named tensor; `arrays`: what they are in the latest step.
    """

    condition: Condition
    target: str
    place: str
    keys: dict[str, str]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    history: deque[tuple[int, dict[str, float]]] = field(
        default_factory=lambda: deque(maxlen=HISTORY)
    )


class Watch(Observer):
    """An observer that ends the run as `Tripped` after the first step for which one of these
    conditions holds, of several ranks on one of them. The step computes the figures that they need,
    and is else the same. In a workspace these are metrics: ``absmax.d_w``.
    """

    def __init__(self, *texts: str):
        self.conditions = [Condition(text) for text in texts]
        self._watched: list[_Watched] = []
        self._program: Program | None = None

    def began(self, trainer: Trainer) -> None:
        if trainer.program is not self._program:
            self.install(trainer)
        execute = trainer.execute

        def execute_watched(batch: Rows) -> Mapping[str, np.ndarray]:
            results = dict(execute(batch))
            self._take(trainer, {n: results.pop(n) for n in figures_of(results)})
            return results

        trainer.execute = execute_watched

    def install(self, trainer: Trainer) -> None:
        """Has the step compute what the conditions ask for: in another program, so this is to be
        called before other observers begin.
        """
        program = trainer.program
        values = step_values(program, trainer.graph)
        tensors = {n: d.type for n, d in program.verified.tensors.items()}
        wanted: dict[Wanted, list[tuple[_Watched, str]]] = {}
        self._watched = []
        for condition in self.conditions:
            for target in condition.targets(values, tensors):
                figures = list(condition.wanted(target, values, tensors))
                place = next((f.value.place for _, f in figures if f.value.place), "")
                one = _Watched(condition, target, place, {})
                one.keys = dict.fromkeys(condition.expression.names, "")
                self._watched.append(one)
                for name, figure in figures:
                    wanted.setdefault(figure, []).append((one, name))
        self._watched.sort(key=lambda one: _order(values, one.target))
        trainer.program, names = watched(program, trainer.graph, list(wanted))
        self._program = trainer.program
        for name, users in zip(names, wanted.values(), strict=True):
            for one, asked in users:
                one.keys[asked] = name

    def stepped(self, trainer: Trainer, metrics: Metrics) -> None:
        trips = list(self._trips(trainer.step - 1))
        if trainer.ask_others(bool(trips)) if trainer.ask_others else trips:
            raise Tripped(trainer.step - 1, trips)

    def _take(self, trainer: Trainer, figures: Mapping[str, np.ndarray]) -> None:
        """Takes down the figures of a step; a run that is recorded has them among its metrics."""
        metrics: dict[str, float] = {}
        for one in self._watched:
            for name, key in one.keys.items():
                figure, tensor = one.condition.actual(name, one.target)
                if key:
                    one.arrays[name] = figures[key]
                else:
                    one.arrays[name] = computed(figure, trainer.program.params[tensor])
                if figure != VALUE:
                    metrics[f"{figure}.{tensor}"] = float(one.arrays[name])
        for observer in trainer.observers:
            if isinstance(observer, RunRecord):
                observer.figures = metrics

    def _trips(self, step: int) -> Iterator[Trip]:
        for one in self._watched:
            condition, scope = one.condition, Figures(one.arrays)
            one.history.append((step, condition.told(one.target, scope)))
            if condition.holds(scope):
                shown = one.history[-1][1]
                history = {f: [(s, told[f]) for s, told in one.history] for f in shown}
                yield Trip(condition.text, one.target, one.place, history)


def _order(values: dict[str, StepValue], target: str) -> int:
    return next((k for k, name in enumerate(values) if name == target), len(values))
