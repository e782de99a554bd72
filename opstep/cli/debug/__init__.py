"""``opstep debug``: the debugger in a terminal, with gdb's commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opstep.api.settings import BUDGET, RunSettings
from opstep.cli.common import (
    OK,
    PROGRAM,
    FloatRange,
    command,
    option,
    watch_compiler,
)
from opstep.cli.options import (
    KERNELS,
    POLICY,
    fallback_option,
    import_option,
    program_options,
    ranks_options,
    setting_options,
)
from opstep.cli.scripts import ScriptCommand, script_arguments, script_options
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.cli.debug.session import Session
    from opstep.runtime.debugger import debugger as core


@command(
    "debug",
    cls=ScriptCommand,
    examples=[
        ("opstep debug model.opg --input random --symbol N=4", "type help for the commands"),
        ("opstep debug model.opg -i x=x.npy --params trained.safetensors", "with weights"),
        ("opstep debug model.opg -i random -ex 'catch nan' -ex run", "run to the first NaN"),
        ("opstep debug model.opg -i random --streams 4 --alloc reuse", "with four streams"),
        ("opstep debug model.opg -i random -x commands.txt --batch", "commands from a file"),
        ("opstep debug step.opg -i x=part-{rank}.npy --ranks 4", "four ranks, as one"),
        ("opstep debug -ex 'break 12' -ex run train.py", "a Python script"),
        ("opstep debug --listen 5678 --wait train.py", "a script, from an editor"),
        ("echo 'b relu\nrun\np x' | opstep debug model.opg -i random", "or from a pipe"),
    ],
    codes={
        OK: "the session was ended; of a script that ended, its exit code",
        PROGRAM: "errors in the program; with --batch, a command that could not be done",
    },
)
@click.argument("file", metavar="FILE")
@program_options()
@setting_options("device", *KERNELS, "threads", "steps", "seed", *POLICY, mode="debug", seed=0)
@option("--workspace -w FILE.db", "A workspace with runs that expressions can refer to.")
@option(
    "--memory GiB",
    "Memory for results to step back to; older ones are recomputed when needed.",
    FloatRange(0, min_open=True),
    default=BUDGET / 2**30,
)
@option("-x FILE", "Run the commands in a file first.", to="script")
@option("-ex COMMAND…", "Run a command first.", to="given")
@option("--batch", "Exit after -x and -ex; with 1 if one could not be done.")
@option(
    "--listen PORT",
    "Of a script: an editor attaches to this port of this machine, in place of the terminal. 0: a "
    "free one. Standard error begins with a line that ends with the port.",
    click.IntRange(0, 65535),
)
@option("--wait", "Of a script: start it when an editor has attached.")
@fallback_option
@import_option
@script_options
@ranks_options
def debug(file: str, **options: Any) -> int:
    """Step through a graph in the terminal, forwards and backwards.

    The commands are those of gdb: break, run, next, step, print, watch, reverse-next … An empty
    line repeats the last command; help lists all. See docs/debugging.md.

    FILE can be a Python script, which runs as Python runs it, under debugpy. What is after its name
    is for the script; options of programs are not for it. -m runs a module.

    --ranks debugs so many ranks as one, in this process. docs/distributed.md describes it.
    """
    if script_arguments() is not None:
        if options["ranks"] or options["mesh"]:
            raise InputError("--ranks and --mesh are for programs, not for scripts")
        from opstep.cli.debug.python import debug_script

        flags = {one.name: max(one.opts, key=len) for one in debug.params}
        return debug_script(file, options, flags)
    from opstep.cli.debug.opening import asked, begun, given_commands
    from opstep.cli.debug.rank_session import RankSession
    from opstep.cli.debug.session import Session
    from opstep.runtime.debugger.ranks.lockstep import RankDebugger

    first = given_commands(options)
    with watch_compiler():
        debugger = opened(file, options)
    kind: Any = RankSession if isinstance(debugger, RankDebugger) else Session
    session = begun(kind, debugger, options["batch"])
    greet(session, file, options)
    for reader in first:
        session.loop(reader)
    if not options["batch"] and not session.over:
        from opstep.cli.debug.completing import completions

        session.loop(asked(session, partial(completions, session)))
    return PROGRAM if options["batch"] and session.failed else OK


def opened(file: str, options: dict[str, Any]) -> core.Debugger:
    """The debugger of a program. Raises `OpstepError`."""
    from opstep.api.debugging import Debugger, debugged
    from opstep.api.rank_debugging import check_number, debug_ranks
    from opstep.cli import inputs as given
    from opstep.runtime.debugger.ranks.lockstep import RankDebugger

    if options["autotune"]:
        raise InputError("--autotune is for opstep run", hint="times are kept for all commands")
    asked = given.asked(file, options)
    program = asked.program
    program.seed = options["seed"]
    ranks = program.mesh.ranks
    check_number(ranks)
    apart = ranks > 1 and any("{rank}" in word for word in options["inputs"])
    values = [asked.values(rank=r) for r in range(ranks)] if apart else asked.values(rank=0)
    asked.load_params()
    begin: Any = Debugger if ranks == 1 else debug_ranks
    debugger = begin(
        program, asked.graph.name.text, values, memory_budget=int(options["memory"] * 2**30),
        files=Path.cwd(), **debugged(RunSettings.of(options)),
    )  # fmt: skip
    members = debugger.group.members if isinstance(debugger, RankDebugger) else [debugger]
    for member in members:
        if options["workspace"]:
            from opstep.trace.workspace.scope import recorded_runs

            member.stop_point.runs = recorded_runs(options["workspace"])
        member.view = "auto"
    return debugger


def greet(session: Session, file: str, options: dict[str, Any]) -> None:
    """What is about to run, and how; what ranks say to each other that does not match."""
    from opstep.api.rank_debugging import mismatches
    from opstep.cli.debug.rank_session import RankSession
    from opstep.runtime.ir.diagnostics import render

    policy = session.debugger.machine.policy
    graph = session.debugger.machine.graph
    ranks: Sequence[str] = []
    if isinstance(session, RankSession):
        mesh = session.group.world.mesh
        ranks = [f"{mesh.ranks} ranks ({mesh})" if mesh.declared else f"{mesh.ranks} ranks"]
    how = f"streams={policy.streams} alloc={policy.alloc} fill={policy.fill} sync={policy.sync}"
    steps: Sequence[str] = [f"{options['steps']:,} steps"] if options["steps"] > 1 else []
    session.say(", ".join([f"{file}: graph {graph}", options["device"], *ranks, how, *steps]))
    if isinstance(session, RankSession):
        for fault in mismatches(session.debugger):
            session.say(render(replace(fault, severity="warning"), session.paint.on))
    if session.interactive:
        session.say("run, start or break first; help lists the commands.")
