"""Messages about a program: where, what is wrong, and what to do about it.

`OpstepError` is the one error that users see for anything about their programs and files.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from opstep.runtime.ir.graph import Source, Span
from opstep.runtime.ir.wording import Words, in_python, worded

_WINDOW = 100  # columns of a source line that a message shows
_LEAD = 40  # of these, how many stand before the span in a line that is longer
_MOST_IN_TEXT = 50  # messages in the text of an exception; `diagnostics` has all
_MOST_ERRORS = 1_000  # of one check
_MOST_SUGGESTIONS = 100  # looking for near names is slow
_MOST_CANDIDATES = 2_000  # difflib is quadratic: among more names no nearest one is looked for

_RED, _CYAN, _BOLD, _RESET = "\x1b[31m", "\x1b[36m", "\x1b[1m", "\x1b[0m"
_COLORS = {"error": _RED, "warning": "\x1b[33m", "note": _CYAN}


class Note(NamedTuple):
    """A second place that belongs to a message; `source` None stands for the message's own."""

    message: str
    span: Span
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message: an error, a warning or a note. Without a span it concerns the whole file.

    `code` says for tools which message it is, where one of them can do something about it.
    """

    severity: str
    message: str
    span: Span | None = None
    source: Source | None = None
    hint: str = ""
    notes: tuple[Note, ...] = ()
    code: str = ""

    @property
    def position(self) -> tuple:
        """Sorts messages by file and place."""
        path = self.source.path if self.source else ""
        return path, self.span or Span(-1, -1), self.severity, self.message

    def where(self) -> str:
        """``file:line:col``, as much of it as is known."""
        return _where(self.source, self.span)

    def __str__(self) -> str:
        return render(self)


class OpstepError(Exception):
    """What is wrong with a user's program, file or arguments: one message or several."""

    def __init__(
        self,
        what: str | Diagnostic | Iterable[Diagnostic],
        *,
        span: Span | None = None,
        source: Source | None = None,
        hint: str = "",
        notes: tuple[Note, ...] = (),
    ):
        if isinstance(what, str):
            what = Diagnostic("error", what, span, source, hint, notes)
        found = (what,) if isinstance(what, Diagnostic) else tuple(what)
        self.diagnostics: tuple[Diagnostic, ...] = in_order(found)
        super().__init__(self.diagnostics)

    def __reduce__(self) -> tuple[Any, ...]:  # kinds of it are made of other arguments
        return type(self).__new__, (type(self), *self.args), vars(self)

    def __str__(self) -> str:
        return self.text()

    def text(self, words: Words = in_python) -> str:
        """All that it says, up to so many messages; arguments in the words of a door."""
        text = render_all(self.diagnostics[:_MOST_IN_TEXT], words=words)
        more = len(self.diagnostics) - _MOST_IN_TEXT
        return f"{text}\n\n… and {more} more" if more > 0 else text


class TooMany(Exception):
    """Too many errors to be worth reading."""


class Reporter:
    """Collects the messages of a check; near names are looked for only so often."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._suggestions = _MOST_SUGGESTIONS

    def error(
        self,
        source: Source | None,
        span: Span,
        message: str,
        hint: str = "",
        notes: tuple[Note, ...] = (),
        code: str = "",
    ) -> None:
        """Adds an error; raises TooMany when there are enough."""
        self.diagnostics.append(Diagnostic("error", message, span, source, hint, notes, code))
        if len(self.diagnostics) >= _MOST_ERRORS:
            message = f"there are more than {_MOST_ERRORS} errors; the rest is not checked"
            self.diagnostics.append(Diagnostic("note", message, span, source))
            raise TooMany

    def near(self, name: str, candidates: Iterable[str]) -> str:
        """A hint with the names nearest to `name`, or ""."""
        if self._suggestions <= 0:
            return ""
        self._suggestions -= 1
        return did_you_mean(name, candidates)


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """By file and place, each said once."""
    return tuple(dict.fromkeys(sorted(diagnostics, key=lambda d: d.position)))


def render_all(
    diagnostics: Iterable[Diagnostic], color: bool = False, words: Words = in_python
) -> str:
    """All messages, a blank line between those that show source lines."""
    texts = [render(d, color, words) for d in diagnostics]
    return ("\n\n" if any("\n" in t for t in texts) else "\n").join(texts)


def render(diagnostic: Diagnostic, color: bool = False, words: Words = in_python) -> str:
    """``file:line:col: error: message``, the source line with carets, the hint and the notes.
    Arguments are called as the door calls them whose `words` they are.
    """
    d = diagnostic
    lines = [_headline(d.severity, worded(d.message, words), d.source, d.span, color)]
    lines += _excerpt(d.source, d.span, _COLORS.get(d.severity, "") if color else "")
    if d.hint:
        hint = f"{_CYAN}hint:{_RESET}" if color else "hint:"
        lines.append(f"{hint} {visible(worded(d.hint, words))}")
    for note in d.notes:
        message, span, source = Note(*note)
        source = source or d.source
        lines.append(_headline("note", worded(message, words), source, span, color))
        lines += _excerpt(source, span, _CYAN if color else "")
    return "\n".join(lines)


def nearest(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """The names most like `name`, best first."""
    names = list(candidates)
    if len(names) > _MOST_CANDIDATES:
        names = [n for n in names if n[:1] == name[:1] and abs(len(n) - len(name)) <= 2]
    if len(name) > 100:
        return []
    lowered = {n.lower(): n for n in names[:_MOST_CANDIDATES]}
    found = difflib.get_close_matches(name.lower(), lowered, n=limit, cutoff=0.65)
    return [lowered[n] for n in found if lowered[n] != name]


class Suggestion(str):
    """A hint that offers names in place of one that is wrong; `names` are these, best first."""

    names: tuple[str, ...]

    def __new__(cls, names: Iterable[str]) -> Suggestion:
        *rest, last = names = tuple(names)
        what = f"{', '.join(rest)} or {last}" if rest else last
        instance = super().__new__(cls, f"did you mean {what}?")
        instance.names = names
        return instance

    def __getnewargs__(self) -> tuple[tuple[str, ...]]:
        return (self.names,)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """A hint with the nearest names, a `Suggestion`; or "" where nothing is near."""
    found = nearest(name, candidates)
    return Suggestion(found) if found else ""


def names_listed(names: Iterable[str], most: int = 8) -> str:
    """``a, b, c, …``"""
    shown = list(names)
    return ", ".join(shown[:most]) + (", …" if len(shown) > most else "")


def first_line(error: BaseException) -> str:
    """What a library says is wrong, in short."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return line if len(line) <= 200 else f"{line[:199]}…"


def visible(text: str) -> str:
    """`text` with control characters and half surrogates replaced: fit for any terminal."""
    return text if text.isprintable() else "".join(map(_cell, text))


def _headline(severity: str, message: str, source, span, color: bool) -> str:
    where, message = _where(source, span), visible(message)
    if color:
        head = f"{_BOLD}{where}:{_RESET} " if where else ""
        return (
            f"{head}{_COLORS.get(severity, '')}{_BOLD}{severity}:{_RESET} {_BOLD}{message}{_RESET}"
        )
    return f"{where}: {severity}: {message}" if where else f"{severity}: {message}"


def _where(source: Source | None, span: Span | None) -> str:
    if source is None:
        return ""
    if span is None:
        return visible(source.path)
    line, column = source.locate(span.start)
    return f"{visible(source.path)}:{line}:{column}"


def _excerpt(source: Source | None, span: Span | None, color: str) -> list[str]:
    """The line of the span and the carets under it."""
    if source is None or span is None:
        return []
    number, column = source.locate(span.start)
    line = source.line(number)
    begin = min(column - 1, len(line))
    end = min(max(begin + span.end - span.start, begin + 1), max(len(line), begin + 1))
    left, right = 0, len(line)
    if right > _WINDOW:
        left = max(0, min(begin - _LEAD, right - _WINDOW))
        right = min(right, left + _WINDOW)
    before = "…" if left else ""
    after = "…" if right < len(line) else ""
    shown = visible_cells(line[left:right])
    text = "".join(shown)
    indent = len(before) + sum(map(_width, "".join(shown[: begin - left])))
    carets = "^" * max(1, sum(map(_width, "".join(shown[begin - left : end - left]))))
    paint, plain = (color, _RESET) if color else ("", "")
    return [f"  {before}{text}{after}", f"  {' ' * indent}{paint}{carets}{plain}"]


def visible_cells(text: str) -> list[str]:
    """What is shown for each character of a source line."""
    return ["    " if c == "\t" else _cell(c) for c in text]


def _cell(c: str) -> str:
    return c if c.isprintable() or unicodedata.combining(c) else "�"


def _width(c: str) -> int:
    """Columns that a terminal gives to a character."""
    if c.isascii():
        return 1
    if unicodedata.combining(c):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1
