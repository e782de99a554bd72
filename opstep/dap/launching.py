"""What ``launch`` asks for, as a run: the words are those of ``opstep run``."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    from opstep.runtime.debugger import debugger as core
    from opstep.runtime.ir.graph import Graph
    from opstep.runtime.ir.types import DType

    Loaded = tuple[Program, str, Any]  # with the inputs of all ranks, or a list of each one's own


@dataclass(frozen=True)
class Sought:
    """Which finding of a hunt is meant: that of a value, at a line."""

    complete: ClassVar[bool] = True
    value: str = ""
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class LaunchArguments(RunSettings):
    """Arguments of ``launch``: how to run, and what. `inputs` and `symbols` are by name; inputs may
    be words as on the command line (``x.npy``, ``random``), numbers, or lists, and symbols words
    (``N=8``) for editors whose settings hold no numbers. Paths are relative to `cwd`. What
    debugs Python scripts is not read here, see `opstep.dap.python`.
    """

    mode: str = "debug"
    seed: int = 0
    autotune: ClassVar[bool] = False  # not under a debugger
    chaos: ClassVar[int | None] = None
    program: str
    graph: str | None = None
    inputs: dict[str, Any] | list[str] | str | None = None
    symbols: dict[str, int | str] | list[str] = field(default_factory=dict)
    params: str | None = None
    ranks: int | None = None
    mesh: dict[str, int] | None = None  # ranks along axes, in place of those that the text declares
    fallback: Literal["torch"] | None = None
    stop_on_entry: bool = False
    stop_at_end: bool | None = None  # None: where a result has a NaN or an infinity
    memory_budget: int = BUDGET
    workspace: str | None = None
    run: str | None = None  # of the workspace: its program and inputs, in place of those given here
    hunt: bool | Sought = False
    trace: str | None = None
    cwd: str | None = None
    env: dict[str, str | None] = field(default_factory=dict)
    on_disconnect: Literal["terminate", "continue"] = "terminate"
    source_view: View = "auto"
    no_debug: bool = False

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
    def sizes(self) -> dict[str, int | DType]:
        """The symbols by name. Raises `InputError`."""
        from opstep.api.sources import parse_symbols

        words = self.symbols
        if isinstance(words, dict):
            words = [f"{name}={size}" for name, size in words.items()]
        return parse_symbols(words)


def launch(session: Session, arguments: LaunchArguments) -> Debuggee:
    """Loads the program and prepares its run. Raises `OpstepError`; then nothing has changed."""
    settings = arguments.settings
    check_folder(arguments)
    if arguments.run is None:
        given = loaded(arguments)
        program, graph, inputs = given
        told = inputs[0] if isinstance(inputs, list) else inputs
        report_generated(session, arguments, program, program.module.graphs[graph], told)
    else:
        given, steps = recorded_run(arguments)
        settings = replace(settings, steps=steps, seed=None)
    debugger = prepared(session, arguments, given, settings)
    if arguments.workspace and Path(arguments.at(arguments.workspace)).exists():
        from opstep.trace.workspace.scope import recorded_runs

        runs = recorded_runs(arguments.at(arguments.workspace))
        for number, _ in debugger.threads():
            debugger.at(number).stop_point.runs = runs
    debuggee = Debuggee(
        session,
        arguments.folder,
        stops_at_end=arguments.stop_at_end,
        goes_on=arguments.on_disconnect == "continue",
    )
    debuggee.debugger = debugger
    session.per_session(SourceView).view = arguments.source_view
    return debuggee


def prepared(
    session: Session, arguments: LaunchArguments, given: Loaded, settings: RunSettings
) -> core.Debugger:
    """A debugger that begins at the begin, or where a hunt leads."""
    from opstep.api.debugging import Debugger, debugged

    options: dict[str, Any] = {
        "stop_on_entry": arguments.stop_on_entry,
        "stop_at_end": arguments.stop_at_end is not False,
        "memory_budget": arguments.memory_budget,
        "files": arguments.folder,
    }
    if given[0].mesh.ranks > 1:
        if arguments.hunt is not False:
            raise InputError("hunt is for one rank", hint='leave out "hunt": catch NaNs')
        from opstep.api.rank_debugging import debug_ranks, mismatches

        debugger = debug_ranks(*given, **options, **debugged(settings))
        for fault in mismatches(debugger):
            warning = OpstepError([replace(fault, severity="warning")])
            session.output(session.worded(warning), "important")
        return debugger
    if arguments.hunt is False:
        return Debugger(*given, **options, **debugged(settings))
    from opstep.dap.hunted import hunting_debugger

    sought = Sought() if arguments.hunt is True else arguments.hunt
    return hunting_debugger(session, given, settings, (sought.value, sought.line), options)


def recorded_run(arguments: LaunchArguments) -> tuple[Loaded, int]:
    """What the run that is named was given, and how many of its steps can be repeated."""
    from opstep.dap.hunted import recorded

    if arguments.ranks not in (None, 1) or arguments.mesh:
        raise InputError("a recorded run is of one rank", hint='leave out "ranks" and "mesh"')
    if arguments.workspace is None:
        raise InputError("run: a recorded run is in a workspace", hint='add "workspace"')
    sought = None
    if arguments.hunt is not False:
        found = Sought() if arguments.hunt is True else arguments.hunt
        sought = found.value, found.line
    return recorded(Path(arguments.at(arguments.workspace)), arguments.run or "last", sought)


def report_generated(
    session: Session, arguments: LaunchArguments, program: Program, graph: Graph,
    inputs: Mapping[str, np.ndarray],
) -> None:  # fmt: skip
    """Says which inputs come from nowhere: ``x random: normal numbers, y zeros (seed 0)``."""
    from opstep.api.sources import described

    words, literal = words_of(arguments, graph)
    found = described(program, graph, words, inputs, literal)
    seed = f" (seed {arguments.seed})" if any(" random: " in text for text in found) else ""
    if found:
        session.output(
            f'Inputs made up: {", ".join(found)}{seed}. Give yours as "inputs" in launch.json.',
            "stdout",  # VS Code shows the console's own words as warnings
        )


def check_folder(arguments: LaunchArguments) -> None:
    if not arguments.folder.is_dir():
        raise InputError(f"cwd: there is no folder {arguments.folder}")


def loaded(arguments: LaunchArguments) -> Loaded:
    """The program with its params, the name of its graph, and the inputs."""
    from opstep.api import sources
    from opstep.api.program import load
    from opstep.api.rank_debugging import check_number

    path = arguments.at(arguments.program)
    if is_special(path):  # to open a pipe waits for who writes to it, which may be nobody
        raise InputError(f"{path} is not a regular file")
    check_mesh(arguments)
    program = load(
        path, fallback=arguments.fallback, ranks=arguments.ranks, mesh=arguments.mesh or None
    )
    ranks = program.mesh.ranks
    check_number(ranks)
    program.seed = arguments.seed
    graph = sources.choose_graph(program.module, arguments.graph, arguments.program)
    sources.check_symbols(graph, arguments.sizes)
    if ranks > 1 and "{rank}" in str(arguments.inputs):
        own = (of_rank(arguments.inputs, str(r)) for r in range(ranks))
        inputs: Any = [arrays_of(replace(arguments, inputs=i), program, graph) for i in own]
    else:
        inputs = arrays_of(arguments, program, graph)
    if arguments.params:
        sources.load_params(program, arguments.at(arguments.params))
    return program, graph.name.text, inputs


def check_mesh(arguments: LaunchArguments) -> None:
    """Raises `InputError` for numbers of ranks that cannot be."""
    given = {"ranks": arguments.ranks} if arguments.ranks is not None else {}
    for name, ranks in {**given, **(arguments.mesh or {})}.items():
        if ranks < 1:
            raise InputError(f"{name}: {ranks} ranks cannot be debugged", hint="1 is the least")
        if not name.isidentifier():
            raise InputError(f"mesh: {name!r} is not the name of an axis")


def of_rank(inputs: Any, rank: str) -> Any:
    """Inputs with the number of a rank for ``{rank}``."""
    if isinstance(inputs, str):
        return inputs.replace("{rank}", rank)
    if isinstance(inputs, Mapping):
        return {name: of_rank(value, rank) for name, value in inputs.items()}
    return [of_rank(one, rank) for one in inputs] if isinstance(inputs, list) else inputs


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
    from opstep.api.inputs import as_array, type_variables

    words, literal = words_of(arguments, graph)
    variables = type_variables(graph, literal) | arguments.sizes
    dtypes = {
        b.name.text: b.type.dtype.bound(variables) for b in graph.inputs if b.type is not None
    }
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
        if program.mesh.ranks > 1:
            hint = "opstep run --ranks starts them"
            raise InputError("without debugging, one rank is run", hint=hint)
        report_generated(session, arguments, program, program.module.graphs[graph], inputs)
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
    if not all(is_finite(array) for array in result.values()):
        from opstep.dap.hunted import report_findings

        report_findings(session, loaded(arguments), settings)  # from the beginning: params, states
    return OK


def is_finite(array: np.ndarray) -> bool:
    """Whether it has no NaN and no infinity."""
    import numpy as np

    return array.dtype.kind in "iub" or bool(np.isfinite(array).all())


def recording_of(arguments: LaunchArguments) -> Any:
    from opstep.trace.recording import Recording

    files = [arguments.at(f) if f else None for f in (arguments.workspace, arguments.trace)]
    return Recording(workspace=files[0], trace=files[1]) if any(files) else None
