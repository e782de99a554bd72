"""Completions of the Tab key in a session on a script."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from opstep.cli.debug.python.looking import TOPICS
from opstep.cli.debug.python.places import known_files
from opstep.cli.debug.python.source import python_file
from opstep.cli.debug.registry import Refused, split

if TYPE_CHECKING:
    from opstep.cli.debug.python.session import PythonSession

_WORD = re.compile(r"[\w.:/-]*$")
_NAME = re.compile(r"\w*$")
_MOST = 500  # that are offered


def completions(session: PythonSession, line: str) -> tuple[int, list[str]]:
    """For a line up to the cursor: where the word begins that is completed, and what it can be."""
    line = line.lstrip()
    name, rest = split(line)
    commands = session.registry.commands
    if not rest and not line[len(name) :]:
        found = sorted(c for c in commands if c.startswith(name))
        return (0, found) if found else python(session, line)
    try:
        kind = session.understood(line)[0].completes
    except Refused:
        return len(line), []
    if kind == "expression" or re.search(r"\sif\b", line):
        return python(session, line)
    word = _WORD.search(line)
    begun = word[0] if word else ""
    offered = candidates(session, kind)
    return len(line) - len(begun), sorted(o for o in offered if o.startswith(begun))[:_MOST]


def candidates(session: PythonSession, kind: str) -> list[str]:
    """All words of a kind."""
    if kind == "command":
        return list(session.registry.commands)
    if kind == "topic":
        return list(TOPICS)
    if kind == "breakpoint":
        return list(map(str, session.points.entries))
    if kind == "filter":
        with suppress(Refused):
            return list(session.offered())
    if kind != "place":
        return []
    found: list[str] = []
    for path in known_files(session):
        file = python_file(path)
        found += [f"{Path(path).name}:", *(f.name for f in file.functions if file)] if file else []
    return found


def python(session: PythonSession, line: str) -> tuple[int, list[str]]:
    """Completions of the adapter in the selected frame."""
    name = _NAME.search(line)
    begun = name[0] if name else ""
    try:
        text = line.partition(" ")[2] if session.understood(line)[1] != line else line
        request = session.alive().client.request
        answer = request("completions", frameId=session.frame().id, text=text, column=len(text) + 1)
    except Refused:
        return len(line), []
    labels = [str(t.get("text") or t["label"]) for t in answer.get("targets", [])]
    return len(line) - len(begun), [n for n in labels if n.startswith(begun)][:_MOST]
