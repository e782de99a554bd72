"""Scripts of PyTorch's: a step as a program, and where two scripts part."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.cli.common import OK, PROGRAM, amount, emit_json, is_explicit, say
from opstep.cli.scripts import Started, script_arguments
from opstep.cli.wording import in_switches
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.frontends.scripts.script import Script


def record_step(file: str, options: dict[str, Any]) -> int:
    """``opstep run --record-step 12 train.py``"""
    from opstep.frontends.scripts.script import Script
    from opstep.frontends.torch.eager import programs

    number, outputs = options["record_step"], options["outputs"]
    if len(outputs) > 1:
        raise InputError("--record-step writes one program: give --output once")
    script = Script.find(file, script_arguments() or (), options["is_module"])
    program = programs.record_step(script, number, in_switches)
    _write(program, number, Path(outputs[0]) if outputs else _default(script, number))
    return OK


def _default(script: Script, number: int) -> Path:
    return Path(f"{Path(script.path).stem}-step{number}.opg")


def _write(program: Program, number: int, target: Path) -> None:
    from opstep.frontends.torch.eager.programs import GRAPH

    written = program.save(target)
    statements = amount(len(program.graph(GRAPH).body), "statement")
    say(f"step {number}, {statements}: wrote {', '.join(map(str, written))}")
    say(f"{shlex.join(['opstep', 'hunt', str(target), '-i', 'example'])} runs it as it was")


def write_kept(started: Started, found: Any) -> None:
    """Of a finding in a script: the step that it is in, if that was kept, else how to record it."""
    from opstep.frontends.torch.eager.names import optimizers
    from opstep.frontends.torch.errors import ImportFailed

    options, script = started.options, started.script
    how = ["run", "--record-step", str(found.step)]
    if not optimizers():  # the first step may begin later
        how = ["hunt", "--keep-step"]
    again = ["opstep", *how, *["-m"] * options["is_module"], script.name, *script.arguments]
    try:
        steps = (one.kept_step() for one in started.frameworks.entered)
        kept = next(filter(None, steps), None)
    except ImportFailed as error:
        say(f"the step was not written: {error}")
        return
    if kept is not None:
        _write(kept[1], kept[0], _default(script, kept[0]))
    if kept is None or kept[0] != found.step:
        say(f"{shlex.join(again)} writes its step as a program")


def is_script(files: tuple[str, ...], options: dict[str, Any]) -> bool:
    return files[0].lower().endswith(".py") and not options["against"]


def diff_scripts(files: tuple[str, ...], options: dict[str, Any]) -> int:
    """``opstep diff a.py b.py``, or ``opstep diff train.py --b-args "--lr 0.1"``"""
    from opstep.frontends.torch.eager import pairing, partings

    if len(files) > 2:
        raise InputError(f"{len(files)} files are given; two at most can be compared")
    for file in files:
        if not Path(file).is_file():
            raise InputError(f"{file}: there is no such script")
    names = [*files, *files][:2]
    a = [names[0], *shlex.split(options["a_args"])]
    b = [names[1], *shlex.split(options["b_args"])]
    steps = options["steps"] if is_explicit("steps") else pairing.STEPS
    found = pairing.diff_scripts(a, b, steps, options["memory"] << 20)
    if options["as_json"]:
        emit_json(partings.record(found))
    else:
        print(partings.report(found))
    return OK if found.same else PROGRAM
