"""What is done around runs of a script's parts: hunts, recordings, debuggers that attach."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from opstep.frontends.scripts.options import Hunting, Options
from opstep.hunting.harmless import Harmless, marks_of

if TYPE_CHECKING:
    from opstep.api.executable import Alarm, Executable
    from opstep.hunting.report import Hunt
    from opstep.runtime.device.flagging import Raised, Verdict
    from opstep.runtime.nan.findings import Finding
    from opstep.runtime.nan.kinds import Roles
    from opstep.trace.recording import Recording


told: list[Hunt] = []  # what hunts of scripts and compiled models found, the latest last


class NumericsWarning(UserWarning):
    """A NaN or an infinity was born in what opstep runs of a script."""


class Watch:
    """Of the graphs that are made with the same options."""

    def __init__(self, options: Options):
        self.settings = options.settings
        self.fallback = options.fallback
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
    saved: set[str]  # outputs that are kept for a backward pass

    def roles(self, inputs: list[Any]) -> Roles:
        """Facts about these inputs, and about outputs."""
        ...

    def named(self, inputs: list[Any]) -> dict[str, Any]:
        """As a hunt takes them."""
        ...


class Hunter:
    """Looks at the steps of one executable that raised flags; tells of the first bad one."""

    def __init__(self, runner: Runner, hunting: Hunting):
        self.runner = runner
        self.hunting = hunting
        self.executable = runner.executable
        self.steps = 0  # that were run
        self._harmless = Harmless()
        hunting.harmless.append(self._harmless)
        self._told = False

    def ran(self, verdict: Verdict | None, inputs: list[Any]) -> None:
        """A step is done; without a verdict a debugger did it."""
        if verdict is not None and (raised := verdict.raised()):
            verdict.flags.clear()
            if news := self.news(raised):
                self.settle()
                self._examine(news, inputs, self.steps, cleared=True)
        self.steps += 1

    def settle(self) -> None:
        """Has steps before this one told of first."""

    def news(self, raised: list[Raised]) -> list[Raised]:
        """Of these flags those that may mean something."""
        if not raised or self._told:
            return []
        return [r for r in raised if self._harmless.count(marks_of([r]), self.steps)]

    def _examine(
        self, raised: list[Raised], inputs: list[Any], step: int, late: bool = False,
        cleared: bool = False,
    ) -> None:  # fmt: skip
        """Replays a step, whose inputs are still there."""
        from opstep.hunting.report import note_own
        from opstep.hunting.search import hunt

        how, given = self.executable.settings, self.runner.named(inputs)
        found = hunt(
            self.executable.program, self.executable.graph.name.text, given,
            device=how.device, mode=how.mode, streams=how.streams, alloc=how.alloc, fill=how.fill,
            sync=how.sync, threads=how.threads, kernels=how.kernels,
            nan_only=not self.hunting.criteria.infinities, masked=self.hunting.masked,
            wanted=self.hunting.wanted_of(self.executable.program),
            roles=self.runner.roles(inputs),
        )  # fmt: skip
        if not found.found:
            note_own(self.hunting.own, found.intended)
            others = [*found.intended, *found.masked]
            self._harmless.add(marks_of(raised), others, step, cleared)
            self._note(others, step)
            return
        found.findings = [one for f in found.findings for one in self._judged(f, step)]
        if told and all(f.given for f in found.findings):
            self._told = True
            return  # it came from another graph, which was told of
        found.step, found.late = step, late
        places = (f.where.imported for f in found.findings if f.where is not None)
        place = next(filter(None, places), f"{found.graph}:0")
        if self._defers(partial(self._tell, found, place)):
            found.late = True
            return
        self.hunting.given.update(given)
        try:
            self._tell(found, place)
        finally:
            self.hunting.given.clear()

    def _defers(self, tell: Callable[[], None]) -> bool:
        """Whether a finding is reported later, if at all."""
        return False

    def _note(self, others: list[Finding], step: int) -> None:
        """Of a step in which nothing bad came out, what is known of what is kept for a backward."""

    def _judged(self, found: Finding, step: int) -> list[Finding]:
        """The report of a finding of that step."""
        return [replace(found, saved=True) if found.output in self.runner.saved else found]

    def _tell(self, found: Hunt, place: str) -> None:
        """`place`: where the script does what was found first."""
        self._told = True
        told.append(found)
        if self.hunting.tell is not None:
            self.hunting.tell(self.executable.program, found)
            return
        file, _, line = place.rpartition(":")
        warnings.warn_explicit(found.report(), NumericsWarning, file, int(line))


# --- what the process has once ---


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
