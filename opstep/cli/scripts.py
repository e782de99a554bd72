"""Python scripts in place of programs: ``opstep run train.py``, with PyTorch or JAX."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from opstep.api.devices import HOST
from opstep.api.settings import RunSettings
from opstep.cli.common import (
    ADD_BREAK,
    COMMAND,
    FINDINGS,
    FOUND,
    OK,
    UNRECORDED,
    Command,
    emit_json,
    grouped,
    in_switches,
    is_explicit,
    is_watched,
    json_text,
    option,
    say,
    say_report,
)
from opstep.cli.recording import opened_recording, show_recording
from opstep.runtime.ir.diagnostics import did_you_mean, names_listed
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.frontends.scripts.frameworks import Frameworks
    from opstep.frontends.scripts.script import Script
    from opstep.hunting.report import Hunt
    from opstep.trace.recording import Recording

_ARGUMENTS = "opstep.cli.scripts.arguments"
# Options of the commands that say what the script says itself, and why they are refused.
_OWN_DATA = "a script has data and weights of its own, and saves what it wants"
_OWN_TENSORS = "a script runs where its tensors are"
_OF_PROGRAMS = {
    "graph": "the modules that the script calls are run; --module names some of them",
    "symbols": "sizes are those of the script's tensors",
    "inputs": _OWN_DATA, "params": _OWN_DATA, "save_params": _OWN_DATA, "outputs": _OWN_DATA,
    "data": _OWN_DATA, "steps": "the script says how often", "device": _OWN_TENSORS,
    "timeout": _OWN_TENSORS, "seed": "call torch.manual_seed in the script",
    "chaos": "it is for programs", "imports": "a script imports what it needs",
    "as_json": "the script writes to standard output",
}  # fmt: skip
_OF_SCRIPTS = (
    "is_module", "modules", "compiled", "record_step", "keep_going", "listen", "wait", "lint",
    "lint_except", "keep_step",
)  # fmt: skip
# Options of what runs on opstep, which PyTorch's own ops do not.
_OF_COMPILED = (
    "mode", "streams", "alloc", "fill", "threads", "kernels", "autotune", "fallback", "modules",
    "breaks", "keep_inputs", "stats_also",
)  # fmt: skip


class ScriptCommand(Command):
    """A command that takes a script in place of a program. What is behind a script's name is the
    script's.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        options, rest, _ = parser.parse_args(args=list(args))
        file = options.get("file")
        if isinstance(file, str) and (options.get("is_module") or file.lower().endswith(".py")):
            ctx.meta[_ARGUMENTS] = tuple(rest)
            args = args[: len(args) - len(rest)]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Refuses options that make no sense with what was given."""
        script = _ARGUMENTS in ctx.meta
        for one in self.params:
            name = one.name or ""
            if ctx.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
                continue
            flag = max(one.opts, key=len)
            if name == "outputs" and ctx.params.get("record_step") is not None:
                continue
            if script and name in _OF_PROGRAMS and (name, self.name) != ("as_json", "hunt"):
                raise InputError(f"{flag} is not for scripts", hint=_OF_PROGRAMS[name])
            if not script and name in _OF_SCRIPTS:
                raise InputError(f"{flag} is for Python scripts")
        if script and ctx.params.get("fallback") == HOST:
            raise InputError(f"--fallback {HOST} is for programs", hint=_OWN_TENSORS)
        return super().invoke(ctx)


# What says how a script is run.
script_options = grouped(
    option("-m", "FILE is a module's name: as in python -m.", to="is_module"),
    option(
        "--module PATTERN…",
        "Of a compiled script: only the modules with this name, such as encoder.*, not whole "
        "models; or functions of JAX. Can be given several times.",
        to="modules",
    ),
)


# Of commands that run a script of PyTorch's as PyTorch does, if nothing else is asked for.
compiled_option = option(
    "--compiled",
    "Of a script of PyTorch's: compile the modules that it calls, and run them on opstep.",
)


def script_arguments() -> tuple[str, ...] | None:
    """Those of the script that was given; None where a program was."""
    return click.get_current_context().meta.get(_ARGUMENTS)


@dataclass
class Started:
    """A script about to run. Raises `InputError` where it cannot be."""

    file: str
    options: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)  # options of the backend

    def __post_init__(self) -> None:
        from opstep.frontends.scripts.frameworks import Frameworks, check_any_installed
        from opstep.frontends.scripts.options import SETTINGS
        from opstep.frontends.scripts.script import Script

        arguments = script_arguments() or ()
        self.script: Script = Script.find(self.file, arguments, self.options["is_module"])
        check_any_installed()
        given = {n: self.options[n] for n in SETTINGS if n in self.options}
        if "listen" in self.options and not is_explicit("mode"):
            del given["mode"]  # debug mode is for what is stepped through
        RunSettings(**given)
        given |= {"fallback": self.options["fallback"] == "torch", **self.more}
        self.compiled: bool = self.options.get("compiled", True)
        self.stderr = sys.stderr  # the script may put another in its place
        self.frameworks: Frameworks = Frameworks(given, self.options["modules"], self.compiled)
        self.frameworks.refuse = self._refuse

    def run(self) -> int:
        """The script's exit code. Raises as `Script.run` does."""
        with self._told(), self.frameworks:
            code = self.script.run(self.frameworks, in_switches, self.frameworks.settle)
        if code == OK:
            self._say_what_was_missed()
        return code

    def _refuse(self, package: str) -> None:
        """Complains of options that a framework has no use for."""
        context = click.get_current_context()
        is_eager = package == "torch" and not self.compiled
        if package == "torch" and self.compiled and self.options.get("kinds") is not None:
            raise InputError("--hunt is for programs, and for what PyTorch runs itself")
        if not is_eager:
            return
        for one in context.command.params:
            named = one.name == "modules" and "jax" in sys.modules  # JAX's functions, it may be
            if one.name in _OF_COMPILED and is_explicit(one.name) and not named:
                what = (
                    f"{max(one.opts, key=len)} is for what runs on opstep, and this runs in PyTorch"
                )
                raise InputError(what, hint="add --compiled")
        if self.options.get("stats") == "outputs":
            what = "--stats outputs is for graphs, and a script has none"
            raise InputError(what, hint="name ops or values: --stats 'mse_loss:*,loss'")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """While the block lasts, what takes long before the first run is said on standard error."""
        from opstep.frontends.scripts.waiting import told
        from opstep.runtime.device.cache import Compiler

        if not is_watched():
            yield
            return
        before, Compiler.on_compile = Compiler.on_compile, _Kernels(self._tell).compiling
        try:
            with told(self._tell):
                yield
        finally:
            Compiler.on_compile = before

    def _tell(self, what: str) -> Callable[[], None]:
        say(f"{self.file}: {what} …")
        return lambda: None

    def _say_what_was_missed(self) -> None:
        """Where nothing was seen, or not what was asked for."""
        for text in self.frameworks.notes():
            say(f"note: {self.file}: {text}")
        if unwatched := self.frameworks.unwatched():
            say(f"note: {self.file} compiles {unwatched} itself, which runs as it says")
        elif not self.frameworks.called:
            of_torch = "called no nn.Module" if self.compiled else "ran no op of PyTorch's"
            say(f"note: {self.file} {of_torch}, and no function with @opstep.jax.debug")
        if not self.frameworks.called:
            return
        names = sorted(n for n in self.frameworks.names if n)
        for pattern in self.unmatched():
            near = did_you_mean(pattern, names)
            there = f"there are {names_listed(names)}" if names else "its model has no modules"
            say(
                f"note: no module that was called matches --module {pattern}; {there}"
                f"{f'; {near}' if near else ''}"
            )

    def unmatched(self) -> list[str]:
        """The patterns of ``--module`` that nothing matched."""
        names, patterns = self.frameworks.names, self.frameworks.patterns
        return [p for p in patterns if not any(fnmatchcase(name, p) for name in names)]


class _Kernels:
    """Tells once of kernels that are compiled, where that lasts."""

    def __init__(self, tell: Callable[[str], Any]):
        self._tell = tell
        self._began = 0.0
        self._is_told = False

    def compiling(self, kernel: str) -> None:
        """Before each."""
        from opstep.frontends.scripts.waiting import PATIENCE_S
        from opstep.runtime.device.cache import Compiler

        self._began = self._began or monotonic()
        if not self._is_told and monotonic() - self._began >= PATIENCE_S:
            self._is_told = True
            self._tell(f"compiling kernel {Compiler.count()} (once: they are kept)")


# --- run ------------------------------------------------------------------------------------------


def run_script(file: str, options: dict[str, Any]) -> int:
    """``opstep run train.py``: gives the script's exit code."""
    recording = opened_recording(options)
    return _recorded(recording, Started(file, options, {"recording": recording}).run)


def _recorded(recording: Recording | None, run: Callable[[], int]) -> int:
    try:
        code = run()
    finally:
        if recording is not None:
            show_recording(recording)
    reports = recording.close() if recording is not None else []
    return UNRECORDED if code == OK and any(w.problem for w in reports) else code


# --- hunt -----------------------------------------------------------------------------------------


def hunt_script(file: str, options: dict[str, Any]) -> int:
    """``opstep hunt train.py``: ends it at the first NaN or infinity, and tells of that."""
    from opstep.frontends.scripts.options import Hunting
    from opstep.frontends.scripts.script import Leave
    from opstep.hunting.report import nothing_but
    from opstep.runtime.nan.kinds import KINDS, Criteria

    if options["compiled"] and options["lint"]:
        raise InputError("--lint is for what runs in PyTorch", hint="leave --compiled out")
    if options["keep_step"] and (options["compiled"] or options["lint"]):
        raise InputError("--keep-step goes neither with --compiled nor with --lint")
    recording = opened_recording(options)
    started = Started(file, options, {"recording": recording})
    found: list[Hunt] = []
    own: dict[str, bool] = {}
    hunting = Hunting(
        partial(_tell, started, found), partial(_report, started, found),
        Criteria.parse(options["kinds"] or KINDS[: 2 - options["nan_only"]], options["wanted"]),
        options["masked"], own=own, lint=options["lint"],
        lint_except=options["lint_except"], keep_step=options["keep_step"],
    )  # fmt: skip
    started.frameworks.options |= {"hunt": hunting}
    for_editor = os.environ.pop(FINDINGS, "")  # which is not for the script's own processes

    def run() -> int:
        try:
            return started.run()
        except Leave:
            return OK

    with _output_to_stderr() if options["as_json"] else nullcontext():
        code = _recorded(recording, run)
    if recording is not None and options["workspace"] and recording.runs and not started.compiled:
        _record_findings(Path(options["workspace"]), recording.runs[0].key, found)
    if for_editor:
        Path(for_editor).write_text(json_text(_for_editor(file, found)))
    faults = [fault for one in started.frameworks.entered for fault in one.faults()]
    if options["as_json"]:
        lint = {"lint": [vars(fault) for fault in faults]} if options["lint"] else {}
        emit_json({"file": file, "findings": [_record(one) for one in found]} | lint)
    else:
        for one in faults:
            text = f"{one.file}:{one.line}: {one.source}\n{one.kind}: {one.message}"
            _write(text, to=sys.stderr)
    if found or faults:
        return FOUND
    parts = [one for one in started.frameworks.entered if one.compiled]
    unwatched = started.frameworks.unwatched()
    if code == OK and not parts:
        if unmatched := started.unmatched():
            why = f"nothing matched --module {', '.join(unmatched)}"
        elif unwatched:
            why = f"the script compiles {unwatched} itself. Leave torch.compile out"
        else:
            why = "no model was called that opstep runs. Give the script that calls it"
            why = why if started.compiled else "the script ran no op of PyTorch's"
        what = "nothing ran on opstep" if started.compiled else "nothing was checked"
        say(f"{file}: {what}: {why}")
        return COMMAND
    for one in parts:
        if hunting.criteria.slow and one.part != "op":
            say(f"note: {file}: of --hunt only nan and inf were looked for in {one.seen()}")
    for name in options["wanted"]:
        if name not in hunting.known:
            say(f"note: no value that was bad is called {name}, which --wanted names")
    if code == OK and parts:
        calls = [p.seen() for p in parts]
        none = "no NaN and no infinity but those wanted" if hunting.known else "no NaN or infinity"
        none += " came out"
        if options["kinds"]:
            none = f"nothing found of {hunting.criteria}"
        if own:
            none = nothing_but(own, "the script's own", hunting.unseen, "call")
        none += ", and no fault that --lint knows" if options["lint"] else ""
        excepted = "".join(p.excepted() for p in parts)
        missed = f"; not watched: {unwatched}, compiled by the script itself" if unwatched else ""
        say(f"{file}: {' and '.join(calls)}, {none}{excepted}{missed}")
    return code


def _record_findings(path: Path, run: str, found: Sequence[Any]) -> None:
    from opstep.frontends.torch.eager.report import headline
    from opstep.trace.workspace.hunted import add_script_findings

    own = [one for one in found if hasattr(one, "finding")]  # JAX's functions have others
    rows = [(one.step, one.finding, headline(one)) for one in own]
    add_script_findings(path, run, rows)


@contextmanager
def _output_to_stderr() -> Iterator[None]:
    """While the block lasts, what is written to standard output goes to standard error: prints, and
    what libraries and child processes write. Standard output is for JSON.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _tell(started: Started, findings: list[Hunt], program: Program, found: Hunt) -> None:
    """Of a finding; then the script ends, unless it is to go on."""
    from opstep.frontends.scripts.script import Leave

    options = started.options
    findings.append(found)
    if not options["as_json"]:
        _show(found, started.frameworks)
        if found.findings and not options["breaks"]:
            say(ADD_BREAK)
    if options["breaks"] and found.findings:
        from opstep.cli.hunt_break import debug_finding

        how = {"device": found.device, "steps": (found.step or 0) + 1}
        debug_finding(program, found.inputs, found, options | how)
    if not options["keep_going"]:
        started.frameworks.leave()
        raise Leave


def _report(started: Started, findings: list[Any], found: Any) -> None:
    """A finding in the script's own ops; then the script ends, unless it is to go on."""
    from opstep.cli.kept_steps import write_kept
    from opstep.frontends.scripts.script import Leave
    from opstep.frontends.torch.eager.report import report

    findings.append(found)
    if not started.options["as_json"]:
        _write(report(found), to=started.stderr)
    write_kept(started, found)
    if not started.options["keep_going"]:
        started.frameworks.leave()
        raise Leave


def _for_editor(file: str, found: Sequence[Any]) -> dict[str, Any]:
    """As `opstep hunt --json` writes what it found in a program."""
    records = [one for each in map(_record, found) for one in each.get("findings", [each])]
    head = {"graph": Path(file).name, "found": bool(records), "steps": 0, "unrepeated": []}
    return head | {"step": records[0].get("step") if records else None, "findings": records}


def _record(found: Any) -> dict[str, Any]:
    from opstep.hunting.report import Hunt

    if isinstance(found, Hunt):
        from opstep.hunting.records import record

        return record(found)
    from opstep.frontends.torch.eager.report import record as of_script

    return of_script(found)


def _show(found: Hunt, frameworks: Frameworks) -> None:
    """The report, with the line that the script is at; files are relative to this folder."""
    from opstep.frontends.scripts.frames import line_now
    from opstep.hunting.report import report

    text = report(found, in_switches)
    if not found.late and (at := line_now(_origin(found))) is not None:
        line = linecache.getline(*at).strip()
        text = f"{at[0]}:{at[1]}: {line}\n{text}"
    if outside := frameworks.outside(found):
        text += f"\n\n{outside}"
    _write(text)


def _write(text: str, to: Any = None) -> None:
    """With files relative to this folder."""
    with suppress(OSError):  # the script has removed this folder
        text = text.replace(f"{Path.cwd()}/", "")
    say_report(text, to)


def _origin(found: Hunt) -> tuple[str, int] | None:
    """The line of Python that the first finding is from."""
    where = found.first.where if found.first else None
    file, _, line = where.imported.rpartition(":") if where else ("", "", "")
    return (file, int(line)) if file else None
