"""Where commands come from: a terminal with history and completion, a pipe, a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from opstep.cli.debug.showing import Paint

Complete = Callable[[str], tuple[int, list[str]]]

_LONGEST = 100_000  # characters of a line that is read at once
_MOST_SCRIPT = 1 << 20  # bytes of a file of commands


class Reader(Protocol):
    """`name`: what a message calls it. `stops_at_error`: whether a failed command ends it."""

    name: str
    stops_at_error: bool

    def read(self, prompt: str) -> str | None:
        """A line, without its end; None where there are no more. Ctrl-C: `KeyboardInterrupt`."""
        ...


class PipeReader:
    """Standard input that is not a terminal: what is read is shown, for a whole transcript."""

    name = "standard input"
    stops_at_error = False

    def read(self, prompt: str) -> str | None:
        try:
            line = sys.stdin.readline(_LONGEST)
        except UnicodeDecodeError:
            return "?"  # told as a command that there is not
        if not line:
            return None
        line = line.rstrip("\n")
        from opstep.runtime.ir.diagnostics import visible

        click.echo(f"{prompt}{visible(line)}")
        return line


class ScriptReader:
    """Lines of a file, or of the command line."""

    def __init__(self, name: str, lines: Iterable[str], stops_at_error: bool = True):
        self.name = name
        self.stops_at_error = stops_at_error
        self._lines = iter(lines)

    def read(self, prompt: str) -> str | None:
        line = next(self._lines, None)
        return None if line is None else line.rstrip("\r\n")


class TerminalReader:
    """A line editor: history of earlier sessions, completion with Tab, search with Ctrl-R."""

    name = "terminal"
    stops_at_error = False

    def __init__(self, paint: Paint, complete: Complete):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.formatted_text import ANSI

        self._paint = paint
        self._ansi: Any = ANSI
        self._prompts: Any = PromptSession(
            history=history(), completer=line_completer(complete), complete_while_typing=False,
            enable_history_search=True,
        )  # fmt: skip

    def read(self, prompt: str) -> str | None:
        try:
            return self._prompts.prompt(self._ansi(self._paint(prompt, "bold green")))
        except EOFError:
            return None


def line_completer(complete: Complete) -> Any:
    """For the line editor."""
    from prompt_toolkit.completion import Completer, Completion

    class Words(Completer):
        def get_completions(self, document, complete_event):
            line = document.text_before_cursor
            start, found = complete(line)
            back = start - len(line.lstrip())
            yield from (Completion(word, start_position=back) for word in found)

    return Words()


def history() -> Any:
    """Lines of earlier sessions; where they cannot be kept, those of this one."""
    import platformdirs
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    folder = platformdirs.user_state_path("opstep")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "debug_history"
        with path.open("a", encoding="utf-8"):
            pass
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def script(path: str) -> ScriptReader:
    """The commands of a file. Raises `InputError`."""
    from pathlib import Path

    from opstep.runtime.ir.errors import InputError

    try:
        if Path(path).exists() and not Path(path).is_file():  # a device may never end
            raise InputError(f"{path} is not a regular file")
        with open(path, "rb") as file:
            read = file.read(_MOST_SCRIPT + 1)
        if len(read) > _MOST_SCRIPT:
            raise InputError(f"{path}: commands are at most {_MOST_SCRIPT >> 20} MiB")
        text = read.decode("utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"{path}: {why}") from None
    return ScriptReader(path, text.splitlines())
