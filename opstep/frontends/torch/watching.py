"""What is done around runs of compiled models: hunts, recordings, debuggers that attach."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.frontends.torch import findings
from opstep.frontends.torch.options import Hunting, Options

if TYPE_CHECKING:
    from opstep.api.executable import Alarm, Executable
    from opstep.hunting.report import Hunt
    from opstep.runtime.device.flagging import Raised
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
        self._raised = threading.local()
        if options.listen is not None:
            _listen(options.listen)

    # --- hunts ---

    def _note(self, raised: list[Raised]) -> None:
        self._raised.latest = raised

    def raised(self) -> list[Raised]:
        """The flags of the step that this thread has just run."""
        latest = getattr(self._raised, "latest", ())
        self._raised.latest = ()
        return list(latest)


class Hunter:
    """Looks at the steps of one executable that raised flags; tells of the first bad one."""

    def __init__(self, executable: Executable, hunting: Hunting):
        self.executable = executable
        self.hunting = hunting
        self.steps = 0  # that were run
        self._harmless: set[tuple[int, bool, bool]] = set()  # flags that turned out to be
        self._told = False

    def examine(self, raised: list[Raised], inputs: Mapping[str, Any]) -> None:
        """Replays a step, whose inputs are still there."""
        from opstep.hunting.search import hunt

        marks = {(r.value, r.nan, r.inf) for r in raised}
        if self._told or marks <= self._harmless:
            return
        how = self.executable.settings
        found = hunt(
            self.executable.program, self.executable.graph.name.text, inputs, device=how.device,
            mode=how.mode, streams=how.streams, alloc=how.alloc, fill=how.fill, sync=how.sync,
            threads=how.threads, kernels=how.kernels, nan_only=self.hunting.nan_only,
            masked=self.hunting.masked,
        )  # fmt: skip
        if not found.found:
            self._harmless |= marks
            return
        self._told = True
        if findings and all(f.given for f in found.findings):
            return  # it came from another graph, which was told of
        found.step = self.steps
        findings.append(found)
        if self.hunting.tell is not None:
            self.hunting.tell(self.executable.program, found)
            return
        file, line = _python_line(found)
        warnings.warn_explicit(found.report(), NumericsWarning, file, line)


def _python_line(hunt: Hunt) -> tuple[str, int]:
    """Where the model does what was found first."""
    places = (f.where.imported for f in hunt.findings if f.where is not None and f.where.imported)
    file, _, line = next(places, f"{hunt.graph}:0").rpartition(":")
    return file, int(line)


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
