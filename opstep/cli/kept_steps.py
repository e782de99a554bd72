"""Steps of PyTorch's scripts as programs: written, and how to record one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.cli.common import amount, say

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.frontends.scripts.script import Script


def default(script: Script, number: int) -> Path:
    return Path(f"{Path(script.path).stem}-step{number}.opg")


def write(program: Program, number: int, target: Path) -> None:
    from opstep.frontends.torch.eager.programs import GRAPH

    written = program.save(target)
    statements = amount(len(program.graph(GRAPH).body), "statement")
    say(f"step {number}, {statements}: wrote {', '.join(map(str, written))}")
    say(f"{shlex.join(['opstep', 'hunt', str(target), '-i', 'example'])} runs it as it was")


def write_kept(started: Any, found: Any) -> None:
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
        write(kept[1], kept[0], default(script, kept[0]))
    if not options["as_json"] and (kept is None or kept[0] != found.step):
        say(f"{shlex.join(again)} writes its step as a program")
