"""What ``launch`` asks for, as a run: the words are those of ``opstep run``."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from opstep.api.settings import BUDGET, RunSettings
from opstep.dap.debuggee import Debuggee
from opstep.dap.source_view import SourceView, View
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from opstep.api.program import Program
    from opstep.dap.session import Session
    from opstep.runtime.ir.graph import Graph


@dataclass(frozen=True, kw_only=True)
class LaunchArguments(RunSettings):
    """Arguments of ``launch``: how to run, and what. `inputs` and `symbols` are by name; inputs may
    be words as on the command line (``x.npy``, ``random``), numbers, or lists, and symbols words
    (``N=8``) for editors whose settings hold no numbers. Paths are relative to `cwd`. `args`,
    `module` (patterns of names of modules), `python` and `console` are for a program that is a
    Python script.
    """

    mode: str = "debug"
    seed: int = 0
    autotune: ClassVar[bool] = False  # not under a debugger
    chaos: ClassVar[int | None] = None
    program: str
    graph: str | None = None
    inputs: dict[str, Any] | list[str] | str | None = None
    symbols: dict[str, int] | list[str] = field(default_factory=dict)
    params: str | None = None
    fallback: Literal["torch"] | None = None
    stop_on_entry: bool = False
    stop_at_end: bool = False
    memory_budget: int = BUDGET
    workspace: str | None = None
    trace: str | None = None
    cwd: str | None = None
    env: dict[str, str | None] = field(default_factory=dict)
    on_disconnect: Literal["terminate", "continue"] = "terminate"
    source_view: View = "auto"
    no_debug: bool = False
    args: list[str] = field(default_factory=list)
    module: list[str] | str = field(default_factory=list)
    python: str | None = None
    console: Literal["internalConsole", "integratedTerminal", "externalTerminal"] = (
        "internalConsole"
    )

    def __post_init__(self) -> None:
        """`settings` checks, within what is shown when it goes wrong."""

    @property
    def settings(self) -> RunSettings:
        """How to run. Raises `SettingError`."""
        return RunSettings.of(vars(self))

    @property
    def folder(self) -> Path:
        """What relative paths are relative to."""
        return Path(self.cwd).expanduser().absolute() if self.cwd else Path.cwd()

    def at(self, path: str) -> str:
        """A path as it is from anywhere. Raises `InputError`."""
        if "\0" in path:
            raise InputError(f"{path!r} is not a path: it has a NUL in it")
        return str(self.folder / Path(path).expanduser())

    @property
    def sizes(self) -> dict[str, int]:
        """The symbols by name. Raises `InputError`."""
        from opstep.api.sources import parse_symbols

        return parse_symbols(self.symbols) if isinstance(self.symbols, list) else self.symbols


def launch(session: Session, arguments: LaunchArguments) -> Debuggee:
    """Loads the program and prepares its run. Raises `OpstepError`; then nothing has changed."""
    from opstep.api.debugging import Debugger, debugged

    settings = arguments.settings
    check_folder(arguments)
    program, graph, inputs = loaded(arguments)
    debugger = Debugger(
        program,
        graph,
        inputs,
        stop_on_entry=arguments.stop_on_entry,
        stop_at_end=arguments.stop_at_end,
        memory_budget=arguments.memory_budget,
        files=arguments.folder,
        **debugged(settings),
    )
    if arguments.workspace and Path(arguments.at(arguments.workspace)).exists():
        from opstep.trace.workspace.scope import recorded_runs

        debugger.stop_point.runs = recorded_runs(arguments.at(arguments.workspace))
    debuggee = Debuggee(
        session,
        arguments.folder,
        stops_at_end=arguments.stop_at_end,
        goes_on=arguments.on_disconnect == "continue",
    )
    debuggee.debugger = debugger
    session.per_session(SourceView).view = arguments.source_view
    report_generated(session, arguments, program.module.graphs[graph])
    return debuggee


def report_generated(session: Session, arguments: LaunchArguments, graph: Graph) -> None:
    """Says which inputs come from nowhere: ``x random, y zeros (seed 0)``."""
    from opstep.api.sources import GENERATED, parse_inputs

    words, literal = words_of(arguments, graph)
    types = {b.name.text: b.type for b in graph.inputs if b.type and b.name.text not in literal}
    sources = {n: s for n, s in parse_inputs(words, types).items() if s in GENERATED}
    seed = f" (seed {arguments.seed})" if "random" in sources.values() else ""
    if sources:
        generated = ", ".join(f"{name} {source}" for name, source in sources.items())
        session.output(f"Made for this run, not read: {generated}{seed}.")


def check_folder(arguments: LaunchArguments) -> None:
    if not arguments.folder.is_dir():
        raise InputError(f"cwd: there is no folder {arguments.folder}")


def loaded(arguments: LaunchArguments) -> tuple[Program, str, dict[str, np.ndarray]]:
    """The program with its params, the name of its graph, and the inputs."""
    from opstep.api import sources
    from opstep.api.program import load

    path = arguments.at(arguments.program)
    if is_special(path):  # to open a pipe waits for who writes to it, which may be nobody
        raise InputError(f"{path} is not a regular file")
    program = load(path, fallback=arguments.fallback)
    program.seed = arguments.seed
    graph = sources.choose_graph(program.module, arguments.graph, arguments.program)
    sources.check_symbols(graph, arguments.sizes)
    inputs = arrays_of(arguments, program, graph)
    if arguments.params:
        sources.load_params(program, arguments.at(arguments.params))
    return program, graph.name.text, inputs


def is_special(path: str) -> bool:
    """Whether a path leads to something that is neither a file nor a folder."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def arrays_of(arguments: LaunchArguments, program: Program, graph: Graph) -> dict[str, np.ndarray]:
    """An array for each input: from words, or from numbers and lists that stand there."""
    import numpy as np

    from opstep.api import sources
    from opstep.api.inputs import as_array

    words, literal = words_of(arguments, graph)
    dtypes = {b.name.text: b.type.dtype for b in graph.inputs if b.type is not None}
    arrays = {
        name: as_array(f"input {name}", value, dtypes[name])
        if isinstance(value, list)
        else np.asarray(value, dtypes[name].numpy)
        for name, value in literal.items()
    }
    return sources.gather(program, graph, words, arguments.sizes, arguments.seed, arrays)


def words_of(arguments: LaunchArguments, graph: Graph) -> tuple[list[str], dict[str, list | bool]]:
    """The inputs as the command line would have them, and those whose values stand there."""
    inputs: Any = arguments.inputs if arguments.inputs is not None else []
    if isinstance(inputs, str):
        inputs = [inputs]
    if not isinstance(inputs, Mapping):
        return [with_absolute_path(arguments, w) for w in inputs], {}
    names = {b.name.text for b in graph.inputs if b.type is not None}
    words, literal = [], {}
    for name, value in inputs.items():
        if isinstance(value, (list, bool)) and name in names:
            literal[name] = value
        elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
            words.append(with_absolute_path(arguments, f"{name}={value}"))
        else:
            words.append(f"{name}=")
    return words, literal


def with_absolute_path(arguments: LaunchArguments, word: str) -> str:
    """``x=images.npy`` with the path as it is from anywhere."""
    name, equals, source = word.partition("=")
    if not equals or not re.search(r"\.(npy|npz|safetensors)(:|$)", source):
        return word
    return f"{name}={arguments.at(source)}"


def set_environment(session: Session, arguments: LaunchArguments) -> None:
    """Sets variables where this process is this session's alone; says so where it is not."""
    if not arguments.env:
        return
    if not session.alone:
        session.output("env is for a server of its own (opstep dap without --listen): not set")
        return
    for name, value in arguments.env.items():
        if not name or "=" in name or "\0" in name + (value or ""):
            raise InputError(f"env: {name!r} is not a name of a variable")
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def run_plainly(session: Session, arguments: LaunchArguments) -> int:
    """``noDebug``: runs at full speed, recorded where that is asked for; gives the exit code."""
    from opstep.dap.debuggee import FAILED, OK, result_text

    recording = None
    try:
        settings = arguments.settings
        check_folder(arguments)
        program, graph, inputs = loaded(arguments)
        report_generated(session, arguments, program.module.graphs[graph])
        recording = recording_of(arguments)
        result = program.run(
            graph, inputs, recording=recording, on_step=session.check_cancelled, **vars(settings)
        )
    except OpstepError as error:
        session.output(session.worded(error), "stderr")
        return FAILED
    finally:
        for report in recording.close() if recording else []:
            session.output(f"wrote {report.path}")
    for name, array in result.items():
        session.output(f"{name} = {result_text(array)}", "stdout")
    return OK


def recording_of(arguments: LaunchArguments) -> Any:
    from opstep.trace.recording import Recording

    files = [arguments.at(f) if f else None for f in (arguments.workspace, arguments.trace)]
    return Recording(workspace=files[0], trace=files[1]) if any(files) else None
