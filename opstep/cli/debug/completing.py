"""What the Tab key offers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opstep.cli.debug.registry import COMMANDS, Refused, find, split

if TYPE_CHECKING:
    from opstep.cli.debug.session import Session

_WORD = re.compile(r"[\w.*:/-]*$")
MOST = 500  # that are offered


def completions(session: Session, line: str) -> tuple[int, list[str]]:
    """For a line up to the cursor: where the word begins that is completed, and what it can be."""
    line = line.lstrip()
    name, rest = split(line)
    if not rest and not line[len(name) :]:
        return 0, sorted(c for c in COMMANDS if c.startswith(name))
    try:
        kinds = find(name).completes.split()
    except Refused:
        return len(line), []
    if not kinds:
        return len(line), []
    words = line.split()
    kind = kinds[min(max(len(words) - 2 + line[-1:].isspace(), 0), len(kinds) - 1)]
    if kind == "expression" or re.search(r"\sif\b", line):
        return expression(session, line)
    match = _WORD.search(line)
    word = match[0] if match else ""
    offered = candidates(session, kind)
    return len(line) - len(word), sorted(o for o in offered if o.startswith(word))[:MOST]


def candidates(session: Session, kind: str) -> list[str]:
    """All words of a kind."""
    if kind == "command":
        return list(COMMANDS)
    if kind == "topic":
        from opstep.cli.debug.commands.information import TOPICS

        return list(TOPICS)
    if kind == "filter":
        from opstep.runtime.debugger.breakpoints import FILTERS

        return list(FILTERS)
    if kind == "breakpoint":
        return list(map(str, session.points.entries))
    return locations(session)


def locations(session: Session) -> list[str]:
    """Graphs, ops that the program uses, and files."""
    from pathlib import Path

    from opstep.runtime.ir.graph import Apply

    found: dict[str, None] = {}
    for text in session.debugger.host.texts():
        found[f"{Path(text.source.path).name}:"] = None
        for graph in text.graphs:
            found[graph.name.text] = None
            for statement in graph.body:
                if isinstance(statement, Apply):
                    found[statement.callee.text] = None
    return list(found)


def expression(session: Session, line: str) -> tuple[int, list[str]]:
    """Names that have values in the selected frame, and functions."""
    from opstep.runtime.expressions import FUNCTIONS
    from opstep.runtime.expressions.completion import begun_name
    from opstep.runtime.ir.lexer import quote_name

    word = begun_name(line)
    try:
        names = session.debugger.scope(session.frame()).names()
    except Exception:  # Tab never complains
        names = []
    written = map(quote_name, dict.fromkeys(names))
    offered = [n for n in written if n.startswith((word, f"`{word}"))]
    offered += sorted(f"{f}(" for f in FUNCTIONS if f.startswith(word))
    return len(line) - len(word), offered[:MOST]
