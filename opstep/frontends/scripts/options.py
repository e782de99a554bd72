"""What ``options={...}`` of `torch.compile` and `opstep.jax.debug` may hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.api.settings import RunSettings
from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError, SettingError
from opstep.runtime.nan.kinds import Criteria

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.hunting.harmless import Harmless
    from opstep.hunting.report import Hunt
    from opstep.trace.recording import Recording

# The others say what is run on and how often, which the script and its tensors do.
SETTINGS = ("mode", "streams", "alloc", "fill", "sync", "kernels", "threads", "autotune")


@dataclass(frozen=True)
class Hunting:
    """Settings of a hunt: `criteria`, and `masked` as in `opstep.hunt`.

    `tell`: called with a program and what was found in it, in place of a warning. `report`: with
    what was found in a script's own ops, an `eager.findings.ScriptFinding`. `known`: of names that
    are wanted those that a graph has. `own`: where infinities and NaNs of the script's own that
    came out are from, each with whether it is a NaN; `harmless`: the flags that do no harm, of each
    graph.
    `lint`: faults are looked for that give no NaN, but for those of the kinds `lint_except`.
    `keep_step`: the ops of the step at hand are kept, to be written as a program.

    Where the ops around what runs on opstep are watched: `within` says for this thread that those
    which run now are not, and gives what it said before; `defers` takes what reports a backward,
    if that waits for a GradScaler; `given` gets the inputs, by name, of a step that is reported.
    """

    tell: Callable[[Program, Hunt], None] | None = None
    report: Callable[[Any], None] | None = None
    criteria: Criteria = field(default_factory=Criteria)
    masked: bool = False
    known: set[str] = field(default_factory=set)
    own: dict[str, bool] = field(default_factory=dict)
    harmless: list[Harmless] = field(default_factory=list)
    lint: bool = False
    lint_except: tuple[str, ...] = ()
    keep_step: bool = False
    within: Callable[[bool], bool] = lambda is_within: False
    defers: Callable[[Callable[[], None]], bool] = lambda tell: False
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def unseen(self) -> int:
        """The calls in which more of the script's own came out, and that were not replayed."""
        return sum(one.unseen for one in self.harmless)

    def wanted_of(self, program: Program) -> list[str]:
        """The names that values of this program have."""
        from opstep.hunting.search import names_of

        wanted = self.criteria.wanted
        found = [n for n in wanted if n in names_of(program)] if wanted else []
        self.known.update(found)
        return found


@dataclass(frozen=True)
class Options:
    """`settings`: of runs, see `RunSettings`. `hunt`: NaNs and infinities are looked for, and where
    they are born is told. `workspace`, `trace`: files that all runs of the process are recorded in;
    or `recording`, one that is open. `listen`: a port for an editor to attach to. `fallback`: the
    framework runs what cannot be translated: PyTorch single ops, as statements of their own, and
    where that cannot be, a whole graph.
    """

    settings: RunSettings = field(default_factory=RunSettings)
    hunt: bool | Hunting = False
    workspace: str | Path | None = None
    trace: str | Path | None = None
    recording: Recording | None = None
    listen: int | None = None
    fallback: bool = False

    @staticmethod
    def of(given: Mapping[str, Any]) -> Options:
        """Raises `InputError` for a name that is none, or a value that it cannot have."""
        own = [f.name for f in fields(Options)[1:]]
        if not isinstance(given, Mapping):
            raise InputError(f"options is {given!r}; it can be a dict such as {{'hunt': True}}")
        for name in given:
            if name not in own and name not in SETTINGS:
                known = [*SETTINGS, *own]
                what = f"there is no option {name}; there are {', '.join(known)}"
                raise InputError(what, hint=did_you_mean(str(name), known))
        for name, (is_right, wanted) in _VALUES.items():
            if name in given and not is_right(given[name]):
                raise SettingError(name, given[name], wanted)
        settings = RunSettings(**{n: given[n] for n in SETTINGS if n in given})
        return Options(settings, **{n: given[n] for n in own if n in given})


def _is_file(value: Any) -> bool:
    return value is None or (isinstance(value, str | Path) and str(value) != "")


def _is_recording(value: Any) -> bool:
    from opstep.trace.recording import Recording

    return value is None or isinstance(value, Recording)


def _is_port(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value < 1 << 16)


_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "hunt": (lambda v: isinstance(v, bool | Hunting), "True or False"),
    "fallback": (lambda v: isinstance(v, bool), "True or False"),
    "autotune": (lambda v: isinstance(v, bool), "True or False"),
    "workspace": (_is_file, "the name of a file"),
    "trace": (_is_file, "the name of a file"),
    "recording": (_is_recording, "an opstep.Recording; workspace and trace take files"),
    "listen": (_is_port, "a port: 0 to 65535"),
}
