"""The commands of the terminal debugger: a function each, declared with its names and its help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SECTIONS = ("running", "backwards", "breakpoints", "stack", "data", "editing", "session")


class Refused(Exception):
    """A command that cannot be done: one line says why, `hint` what could be."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.message, self.hint = message, hint


@dataclass(frozen=True)
class Command:
    """`names`: the full one first, then abbreviations that win over other commands that begin like
    that. `usage`: how it is written. `repeats`: whether an empty line does it again. `completes`:
    what its argument is (see `completing`). `then`: what an empty line does in its place.
    """

    names: tuple[str, ...]
    usage: str
    section: str
    repeats: bool
    completes: str
    then: str | None
    function: Callable[[Any, str], None]

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def help(self) -> str:
        return inspect.getdoc(self.function) or ""

    @property
    def summary(self) -> str:
        """The first sentence of its help."""
        return self.help.partition("\n\n")[0].replace("\n", " ")


COMMANDS: dict[str, Command] = {}  # by full name
_ALIASES: dict[str, Command] = {}


def command(
    *names: str,
    usage: str,
    section: str,
    repeats: bool = True,
    completes: str = "",
    then: str | None = None,
):
    """Declares the function below, which takes the session and the text behind the name."""

    def register(function: Callable[[Any, str], None]):
        entry = Command(names, usage, section, repeats, completes, then, function)
        COMMANDS[names[0]] = entry
        _ALIASES.update((name, entry) for name in names)
        return function

    return register


def split(line: str) -> tuple[str, str]:
    """``p/x loss`` as ``p`` and ``/x loss``."""
    end = 0
    while end < len(line) and (line[end].isalnum() or line[end] in "-_?"):
        end += 1
    return (line[:end], line[end:].strip()) if end else (line[:1], line[1:].strip())


def find(word: str) -> Command:
    """The command that a word means: its name, an abbreviation, or how only one begins. Raises
    `Refused`.
    """
    if word in _ALIASES:
        return _ALIASES[word]
    found = sorted(name for name in COMMANDS if name.startswith(word))
    if len(found) == 1:
        return COMMANDS[found[0]]
    if found:
        raise Refused(f"{word} is ambiguous: {', '.join(found)}")
    from opstep.runtime.ir.diagnostics import did_you_mean, visible

    hint = did_you_mean(word, _ALIASES) or "help lists the commands"
    raise Refused(f"there is no command {visible(word[:60])}", hint)


def remembered(command: Command, line: str) -> str:
    """What an empty line does next."""
    if command.then is not None:
        return command.then
    return line if command.repeats else ""


def load() -> None:
    """Imports all commands."""
    from importlib import import_module

    modules = "breaking", "data", "information", "other", "ranks", "running", "stack", "threads"
    for module in modules:
        import_module(f"opstep.cli.debug.commands.{module}")
