"""Commands for several ranks that are debugged as one."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np

from opstep.cli.debug import showing
from opstep.cli.debug.commands.information import topic
from opstep.cli.debug.commands.threads import of_ranks
from opstep.cli.debug.rank_session import RankSession
from opstep.cli.debug.registry import Refused, command
from opstep.cli.debug.session import Session
from opstep.runtime.debugger.ranks.comparing import compared, listed
from opstep.runtime.ir.diagnostics import visible
from opstep.runtime.ir.mesh import Group
from opstep.runtime.ir.shards import replicas

MOST = 40  # lines of a comparison


@command("compare [NAME …] [over AXIS …]", section="data", completes="expression")
def compare(session: Session, text: str) -> None:
    """Compare tensors bit by bit over ranks; alone all params and states.

    compare w, compare conv1.*: where ranks should have the same. compare w over data: within each
    group along an axis of the mesh. The ranks that most agree with are right.
    """
    session = of_ranks(session)
    words, _, axes = f" {text} ".partition(" over ")
    patterns = words.split()
    group = session.group.world.group(axes.replace(",", " ").split())
    frame, lines = session.frame(), []
    found = [*frame.params()] if not patterns else [*frame.names(), *frame.params()]
    names = [n for n in dict.fromkeys(found) if _fits(n, patterns)]
    missing = [p for p in patterns if not any(fnmatchcase(n, p) for n in names)]
    if missing:
        raise Refused(f"there is no {visible(missing[0][:60])} here", "info locals, info params")
    if not names:
        raise Refused("the program has no params", "compare NAME")
    shards = frame.machine.host.shards
    for name in names:
        apart = name in shards and replicas(shards, name, group.axes) != group.axes
        alike = Group(group.mesh, replicas(shards, name, group.axes)) if apart else group
        if patterns and not alike.axes:
            over = " and ".join(shards[name].group.axes)
            lines.append(f"{visible(name)}: each rank along {over} has a part of its own")
        for members in alike.groups() if alike.axes else ():
            lines += _compared(session, name, members, whole=alike.is_whole)
    differing = [line for line in lines if " differs " in line or " has no " in line]
    shown = lines if patterns else differing
    for line in shown[:MOST]:
        style = "red" if line in differing else ""
        session.say(session.paint(line, style) if style else line)
    if len(shown) > MOST:
        session.say(f"… {len(shown) - MOST:,} more")
    if not shown:
        session.say(f"All {len(names):,} params and states are the same on all ranks.")


def _fits(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatchcase(name, p) for p in patterns)


def _compared(session: RankSession, name: str, members: tuple[int, ...], whole: bool) -> list[str]:
    """Of one group of ranks."""
    here, arrays = session.frame(), {}
    for member in members:
        frame = session.group.world.frame_of(member, here)
        same = frame.graph is here.graph or name in here.params()
        node = frame.lookup(name) if same else None
        if node is not None:
            arrays[member] = np.array(frame.machine.executor.array(node))
    absent = [r for r in members if r not in arrays]
    lines = compared(arrays).lines(visible(name)) if arrays else []
    if whole and len(lines) == 1 and lines[0].endswith(listed(members)):
        lines = [f"{visible(name)} is the same on all {len(members)} ranks"]
    if absent:
        lines.append(f"{visible(name)} has no value on {listed(absent)}")
    return lines


@topic("ranks")
def ranks(session: Session, text: str) -> None:
    """Where each rank stands."""
    session = of_ranks(session)
    for number, name in session.debugger.threads():
        member, _ = session.group.at(number)
        marker = "*" if member.rank == session.rank and session.thread in (None, number) else " "
        frames = session.debugger.stack(number)
        line = showing.frame_line(session.paint, frames[0]) if frames else "not begun"
        stop = member.stop
        if session.started and session.group.world.has_ended(member.rank):
            line = "has ended"
        elif stop is not None and stop.reason == "waiting":
            line += f", waits {stop.text.partition(' waits ')[2]}"
        session.say(f"{marker} {name}  {line}")
    if session.group.alone:
        session.say(f"scheduler-locking is on: commands move rank {session.rank} alone")
