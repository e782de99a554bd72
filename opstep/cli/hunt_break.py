"""``opstep hunt --break``: the terminal's debugger after the op that a finding names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.cli.debug.completing import completions
from opstep.cli.debug.opening import asked, begun
from opstep.cli.debug.session import Session
from opstep.hunting.debugging import FindingDebugger

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.hunting.report import Hunt
    from opstep.runtime.nan.findings import Finding


def debug_finding(
    program: Program, values: dict[str, Any], found: Hunt, options: dict[str, Any]
) -> None:
    """Reads commands, from the terminal or a pipe, until they end. The program's named tensors are
    as they were before the bad step.
    """
    assert found.first is not None and found.step is not None
    debugger = FindingDebugger(
        found.first, program, found.graph, values, steps=options["steps"] - found.step,
        files=Path.cwd(), **{k: options[k] for k in ("device", "threads", "kernels")},
    )  # fmt: skip
    debugger.view = "auto"
    session = begun(Session, debugger)
    session.say(f"step {found.step}, {position_text(found.first)}; help lists the commands.")
    session.go(debugger.start)
    session.loop(asked(session, partial(completions, session)))


def position_text(finding: Finding) -> str:
    if finding.op:
        return f"after {finding.op} {finding.value}"
    return f"before the first op: {finding.given}"
