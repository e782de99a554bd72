"""Arguments in messages, in the words of whoever reads them.

``symbols={'N': 8}`` is what Python calls ``--symbol N=8`` on the command line and
``"symbols": {"N": 8}`` in an editor's launch.json. So a message that names an argument is a
`Wording`: a string in Python's words that still knows what it names, for doors that have others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

NOT_IN_PYTHON = (("fallback", "cpu"), ("import", "MODULE"), ("patience", None))


class Blank(str):
    """A value that is to be filled in: as text, and the name of an object in Python."""

    python: str

    def __new__(cls, text: str, python: str) -> Blank:
        blank = super().__new__(cls, text)
        blank.python = python
        return blank

    def __getnewargs__(self) -> tuple[str, str]:
        return str(self), self.python

    def __repr__(self) -> str:
        return self.python


ARRAY = Blank("FILE.npy", "array")
SECONDS = Blank("SECONDS", "seconds")


class Argument(NamedTuple):
    """One that was given, or that should be: its name in Python and its value. None: whichever."""

    name: str
    value: Any = None


Words = Callable[[Argument], str | None]
"""How a door calls an argument; None where it has no such."""

Part = str | Argument


def in_python(argument: Argument) -> str | None:
    """``symbols={'N': 8}``, ``device='cpu'``, ``params['w'] = array``"""
    name, value = argument
    if argument in NOT_IN_PYTHON or (name == "inputs" and isinstance(value, str)):
        return None
    if name == "params" and isinstance(value, Mapping):
        return ", ".join(f"params[{k!r}] = {v!r}" for k, v in value.items())
    return f"{name}=…" if value is None else f"{name}={value!r}"


class Wording(str):
    """A text of words and arguments. `ways`: one such text, or several to choose from."""

    ways: tuple[tuple[Part, ...], ...]

    def __new__(cls, *parts: Part) -> Wording:
        return cls.any_of(parts)

    @classmethod
    def any_of(cls, *ways: tuple[Part, ...]) -> Wording:
        """``a, b, or c``: of these a door leaves out those with an argument that it has not."""
        wording = super().__new__(cls, _any_of(ways, in_python))
        wording.ways = ways
        return wording

    def text_in(self, words: Words) -> str:
        """In the words of a door; in Python's where it has none for all of it."""
        return _any_of(self.ways, words) or str(self)


def worded(text: str, words: Words) -> str:
    """A message or a hint, whether it names arguments or not, as it is shown."""
    return shortened(text.text_in(words) if isinstance(text, Wording) else text)


_LONG = re.compile(r"\S{300,}")  # longer than paths usually are
_KEPT = 80


def shortened(text: str) -> str:
    """The ends alone of words, such as names, that nobody reads: ``aaaa…aaab``."""
    return _LONG.sub(lambda word: f"{word[0][:_KEPT]}…{word[0][-_KEPT:]}", text)


def _any_of(ways: tuple[tuple[Part, ...], ...], words: Words) -> str:
    found = [[p if isinstance(p, str) else words(p) for p in parts] for parts in ways]
    *others, last = ["".join(map(str, texts)) for texts in found if None not in texts] or [""]
    return f"{', '.join(others)}, or {last}" if others else last
