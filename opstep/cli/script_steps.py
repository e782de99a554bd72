"""Scripts of PyTorch's: a step as a program, and where two scripts part."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from opstep.cli.common import OK, PROGRAM, emit_json, in_switches, is_explicit
from opstep.cli.kept_steps import default, write
from opstep.cli.scripts import script_arguments
from opstep.runtime.ir.errors import InputError


def record_step(file: str, options: dict[str, Any]) -> int:
    """``opstep run --record-step 12 train.py``"""
    from opstep.frontends.scripts.script import Script
    from opstep.frontends.torch.eager import programs

    number, outputs = options["record_step"], options["outputs"]
    if len(outputs) > 1:
        raise InputError("--record-step writes one program: give --output once")
    script = Script.find(file, script_arguments() or (), options["is_module"])
    program = programs.record_step(script, number, in_switches)
    write(program, number, Path(outputs[0]) if outputs else default(script, number))
    return OK


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
