"""What is done around runs of compiled models: hunts, recordings, debuggers that attach."""

from __future__ import annotations

import atexit
import threading
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from opstep.frontends.torch.options import Hunting, Options
from opstep.frontends.torch.outstanding import Call, Mark, findings, marks_of, outstanding

if TYPE_CHECKING:
    from opstep.api.executable import Alarm, Executable
    from opstep.hunting.report import Hunt
    from opstep.runtime.device.flagging import Raised, Verdict
    from opstep.runtime.nan.findings import Finding
    from opstep.trace.recording import Recording


class NumericsWarning(UserWarning):
    """A NaN or an infinity was born in a compiled model."""


class Watch:
    """Of the graphs that one call of the backend makes."""

    def __init__(self, options: Options):
        self.settings = options.settings
        self.recording = options.recording or _recording(options)
        self.hunting = options.hunt if isinstance(options.hunt, Hunting) else Hunting()
        self.alarm: Alarm | None = self._note if options.hunt else None
        self._latest = threading.local()
        if options.listen is not None:
            _listen(options.listen)

    # --- hunts ---

    def _note(self, verdict: Verdict) -> None:
        self._latest.verdict = verdict

    def verdict(self) -> Verdict | None:
        """On the step that this thread has just run; None where a debugger ran it."""
        latest = getattr(self._latest, "verdict", None)
        self._latest.verdict = None
        return latest


class Runner(Protocol):
    """What runs an executable on tensors."""

    executable: Executable
    saved: set[str]  # outputs that are kept for the backward

    def named(self, inputs: list[Any]) -> dict[str, Any]:
        """As a hunt takes them."""
        ...

    def repeat(self, inputs: list[Any], results: list[tuple[Any, int]]) -> list[Raised] | None:
        """The flags of a call on these inputs; None if it gives other bits than it gave. `results`:
        what it gave, and the versions that they had.
        """
        ...


class Hunter:
    """Looks at the steps of one executable that raised flags; tells of the first bad one.

    `waits`: the flags of a call are read before it returns, for its inputs may change in place
    before anything else happens.
    """

    def __init__(self, runner: Runner, hunting: Hunting):
        self.runner = runner
        self.hunting = hunting
        self.executable = runner.executable
        self.waits = False
        self.steps = 0  # that were run
        self._kept: int | None = None  # bytes of inputs that are kept for a call
        self._is_backward = self.executable.graph.name.text == "backward"
        self._known: set[Mark] = set()  # flags that are harmless, or were told
        self._told = False

    def ran(self, verdict: Verdict | None, inputs: list[Any]) -> None:
        """A step is done; without a verdict a debugger did it."""
        if verdict is not None and (raised := verdict.raised()):
            verdict.flags.clear()
            if news := self.news(raised):
                outstanding.settle()  # calls before it
                self._examine(news, inputs, self.steps)
        self.steps += 1

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

    def news(self, raised: list[Raised]) -> list[Raised]:
        """Of these flags those that may mean something."""
        if not raised or self._told:
            return []
        return [r for r in raised if not marks_of([r]) <= self._known]

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
        self._known |= marks_of(raised)
        self.waits = True
        self._tell(found, next(filter(None, lines), f"{graph}:0"))

    def _examine(
        self, raised: list[Raised], inputs: list[Any], step: int, late: bool = False
    ) -> None:  # fmt: skip
        """Replays a step, whose inputs are still there."""
        from opstep.hunting.search import hunt

        how = self.executable.settings
        found = hunt(
            self.executable.program, self.executable.graph.name.text, self.runner.named(inputs),
            device=how.device, mode=how.mode, streams=how.streams, alloc=how.alloc, fill=how.fill,
            sync=how.sync, threads=how.threads, kernels=how.kernels,
            nan_only=self.hunting.nan_only, masked=self.hunting.masked,
        )  # fmt: skip
        if not found.found:
            self._known |= marks_of(raised)
            return
        self._told = True
        found.findings = list(map(self._judged, found.findings))
        if findings.told and all(f.given for f in found.findings):
            return  # it came from another graph, which was told of
        found.step, found.late = step, late
        places = (f.where.imported for f in found.findings if f.where is not None)
        self._tell(found, next(filter(None, places), f"{found.graph}:0"))

    def _judged(self, found: Finding) -> Finding:
        return replace(found, saved=True) if found.output in self.runner.saved else found

    def _tell(self, found: Hunt, place: str) -> None:
        """`place`: where the model does what was found first."""
        findings.told.append(found)
        if self.hunting.tell is not None:
            self.hunting.tell(self.executable.program, found)
            return
        file, _, line = place.rpartition(":")
        warnings.warn_explicit(found.report(), NumericsWarning, file, int(line))


def _bytes_kept(inputs: list[Any], nbytes: list[int]) -> int:
    """Of inputs that nobody else may keep."""
    from torch.nn import Parameter

    return sum(n for n, t in zip(nbytes, inputs, strict=True) if not isinstance(t, Parameter))


def _line_of(raised: Raised) -> str:
    at = getattr(raised.plan.steps[raised.step].statement, "at", None)
    return f"{at.file}:{at.line}" if at else ""


# --- what the process has once ---


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


_lock = threading.Lock()
_recordings: dict[tuple[Path | None, Path | None], Recording] = {}
_listening: set[int] = set()


def _recording(options: Options) -> Recording | None:
    """The recording of these files; it is closed when the process ends."""
    from opstep.trace.recording import Recording

    files = _absolute(options.workspace), _absolute(options.trace)
    if files == (None, None):
        return None
    with _lock:
        if files not in _recordings:
            _recordings[files] = Recording(workspace=files[0], trace=files[1])
        return _recordings[files]


def _absolute(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path).absolute()


def _listen(port: int) -> None:
    """Lets an editor attach, unless it can already."""
    from opstep.dap import attach

    with _lock:
        if port not in _listening:
            attach.listen(port)
            _listening.add(port)
