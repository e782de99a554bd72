"""The commands of the terminal debugger: a function each, declared with its names and its help."""

from __future__ import annotations

import inspect
import re
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
    what its argument is (see `completing`). `then`: what an empty line does in its place. `more`:
    the rest of its help.
    """

    names: tuple[str, ...]
    usage: str
    section: str
    repeats: bool
    completes: str
    then: str | None
    more: Callable[[], str] | None
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


class Registry:
    """The commands of a kind of session. `modules`: those that declare them."""

    def __init__(self, *modules: str):
        self.commands: dict[str, Command] = {}  # by full name
        self.aliases: dict[str, Command] = {}
        self._modules = modules

    def command(
        self,
        usage: str,
        *short: str,
        section: str,
        repeats: bool = True,
        completes: str = "",
        then: str | None = None,
        more: Callable[[], str] | None = None,
    ):
        """Declares the function below, which takes the session and the text after the name: the
        first word of its usage. `short`: other names.
        """
        names = (re.split(r"[ /[]", usage, maxsplit=1)[0], *short)

        def register(function: Callable[[Any, str], None]):
            entry = Command(names, usage, section, repeats, completes, then, more, function)
            self.commands[names[0]] = entry
            self.aliases.update((name, entry) for name in names)
            return function

        return register

    def find(self, word: str) -> Command:
        """The command that a word means: its name, an abbreviation, or how only one begins. Raises
        `Refused`.
        """
        if word in self.aliases:
            return self.aliases[word]
        found = sorted(name for name in self.commands if name.startswith(word))
        if len(found) == 1:
            return self.commands[found[0]]
        if found:
            raise Refused(f"{word} is ambiguous: {', '.join(found)}")
        from opstep.runtime.ir.diagnostics import did_you_mean, visible

        hint = did_you_mean(word, self.aliases) or "help lists the commands"
        raise Refused(f"there is no command {visible(word[:60])}", hint)

    def load(self) -> None:
        """Imports all commands."""
        from importlib import import_module

        for module in self._modules:
            import_module(f"opstep.cli.debug.{module}")


_OF_GRAPHS = (
    "breaking", "data", "information", "other", "ranks", "running", "shared", "stack", "threads",
)  # fmt: skip
GRAPHS = Registry(*(f"commands.{module}" for module in _OF_GRAPHS))
PYTHON = Registry(
    "python.running", "python.breaking", "commands.stack", "python.looking", "commands.shared"
)
COMMANDS, command, find, load = GRAPHS.commands, GRAPHS.command, GRAPHS.find, GRAPHS.load


def shared(usage: str, *short: str, **how: Any):
    """Declares a command of every kind of session."""

    def register(function: Callable[[Any, str], None]):
        for registry in (GRAPHS, PYTHON):
            registry.command(usage, *short, **how)(function)
        return function

    return register


def split(line: str) -> tuple[str, str]:
    """``p/x loss`` as ``p`` and ``/x loss``."""
    end = 0
    while end < len(line) and (line[end].isalnum() or line[end] in "-_?"):
        end += 1
    return (line[:end], line[end:].strip()) if end else (line[:1], line[1:].strip())


def remembered(command: Command, line: str) -> str:
    """What an empty line does next."""
    if command.then is not None:
        return command.then
    return line if command.repeats else ""
