"""Hunts of compiled models: a GPU may still be at a step when its call returns."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from opstep.frontends.scripts import watching
from opstep.frontends.torch.outstanding import Call, outstanding
from opstep.hunting.harmless import marks_of
from opstep.runtime.nan.findings import INTENDED, ORIGIN, Finding

if TYPE_CHECKING:
    from opstep.frontends.scripts.options import Hunting
    from opstep.runtime.device.flagging import Raised, Verdict


class KeptValues:
    """Values that a forward keeps for its backward, by name: the line that one is from, and what a
    hunt found in it, in which step.
    """

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        self.known: dict[str, tuple[int, Finding]] = {}


class Runner(watching.Runner, Protocol):
    """What runs an executable on PyTorch's tensors."""

    kept_values: KeptValues

    def repeat(self, inputs: list[Any], results: list[tuple[Any, int]]) -> list[Raised] | None:
        """The flags of a call on these inputs; None if it gives other bits than it gave. `results`:
        what it gave, and the versions that they had.
        """
        ...


class Hunter(watching.Hunter):
    """`waits`: the flags of a call are read before it returns, for its inputs may change in place
    before anything else happens.
    """

    def __init__(self, runner: Runner, hunting: Hunting):
        super().__init__(runner, hunting)
        self.runner: Runner = runner
        self.waits = False
        self._kept: int | None = None  # bytes of inputs that are kept for a call
        self._is_backward = self.executable.graph.name.text == "backward"

    def _note(self, others: list[Finding], step: int) -> None:
        kept = {f.output: f for f in reversed(others) if f.saved}
        self.runner.kept_values.known.update({name: (step, f) for name, f in kept.items()})

    def _judged(self, found: Finding, step: int) -> list[Finding]:
        if not self._is_backward:
            return super()._judged(found, step)
        told, first = found, found.given and self._of_forward(found, step)
        if first:
            return [first]
        before = []
        if found.infinity is not None and (made := self._of_forward(found.infinity, step)):
            is_own = made.kind == INTENDED or not made.op
            told = replace(found, infinity=made if is_own else None)
            way = (*made.chain, *found.chain[1:])
            before = [] if is_own else [replace(made, chain=way, output=found.output)]
        return [*before, told]

    def _defers(self, tell: Callable[[], None]) -> bool:
        return self._is_backward and self.hunting.defers(tell)

    def _of_forward(self, given: Finding, step: int) -> Finding | None:
        """Facts about a value that the forward kept: all, if its step was looked into, else
        its line. None of others.
        """
        name, kept = given.given.removeprefix("input "), self.runner.kept_values
        if name not in kept.lines:
            return None
        when, known = kept.known.get(name, (-1, None))
        if known is None or when != step:
            return replace(given, given=f"{name}, kept by the forward ({kept.lines[name]}),")
        if known.kind == INTENDED:
            return known
        chain = (*known.chain, *given.chain[1:])
        return replace(known, kind=ORIGIN, chain=chain, output=given.output, saved=False)

    def settle(self) -> None:
        outstanding.settle()

    def queued(
        self, verdict: Verdict, inputs: list[Any], results: list[Any], nbytes: list[int]
    ) -> None:  # fmt: skip
        """A step was queued on a GPU. `nbytes`: those of its inputs."""
        if self._kept is None:  # the first; later flags are news if they are others than its own
            _look_out()
            self._kept = _bytes_kept(inputs, nbytes)
            wait = True
        else:
            wait = self.waits
        if self._is_backward and not outstanding.sees_optimizers:
            wait = True  # params change next, and nobody says so
        call = Call(self, verdict, inputs, results, self.steps, self._kept)
        self.steps += 1
        outstanding.add(call, wait or call.versions is None)

    def repeat(self, call: Call) -> list[Raised] | None:
        """The flags of the call repeated; None where it is no longer the same."""
        return self.runner.repeat(call.inputs, call.results)

    def examine(self, raised: list[Raised], call: Call) -> None:
        """Replays a call that raised these flags."""
        self._examine(raised, call.inputs, call.step, late=not call.fresh)

    def tell(self, raised: list[Raised], call: Call, until: int, repeated: bool) -> None:
        """Tells of flags alone, of this call or one until that step."""
        from opstep.hunting.report import Hunt
        from opstep.hunting.search import flag_text
        from opstep.runtime.plan.hazards import check

        raised = sorted(raised, key=lambda r: r.step)
        lines = [_line_of(r) for r in raised]
        texts = [
            f"{flag_text(r)}, from {at}" if at else flag_text(r)
            for r, at in zip(raised, lines, strict=True)
        ]
        graph = self.executable.graph.name.text
        found = Hunt(graph, self.executable.settings.device, call.step, until=until, late=True)
        if repeated:
            plans = {id(r.plan): r.plan for r in raised}
            found.unrepeated = texts
            found.hazards = [str(h) for plan in plans.values() for h in check(plan)]
        else:
            found.overwritten = texts
        self._harmless.marks |= marks_of(raised)
        self.waits = True
        self._tell(found, next(filter(None, lines), f"{graph}:0"))


def _bytes_kept(inputs: list[Any], nbytes: list[int]) -> int:
    """Of inputs that nobody else may keep."""
    from torch.nn import Parameter

    return sum(n for n, t in zip(nbytes, inputs, strict=True) if not isinstance(t, Parameter))


def _line_of(raised: Raised) -> str:
    at = getattr(raised.maker.statement, "at", None)
    return f"{at.file}:{at.line}" if at else ""


@cache
def _look_out() -> None:
    """Flags are read before params change, and at the end."""
    from torch.compiler import is_compiling
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def before_step(*_: Any) -> None:
        if not is_compiling():  # an optimizer that is compiled does not look at flags
            outstanding.before_step()

    register_optimizer_step_pre_hook(before_step)
    atexit.register(outstanding.at_exit)
