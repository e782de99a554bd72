"""JSON with comments and trailing commas, as editors keep their settings: texts know their places.

Text that is none gives as much as could be read: these files belong to the user, and are only read
to find a name in them.
"""

from __future__ import annotations

import json
import re
from typing import Any

# What is not closed goes on to the end: from each place on again would take a long text hours.
_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|(?P<string>"(?:[^"\\\n]|\\.)*"?)|(?P<sign>[{}\[\],:])
    |(?P<word>[^\s{}\[\],:"/]+)""",
    re.VERBOSE | re.DOTALL,
)


class Text(str):
    """A string, and the offsets of its quotes."""

    start: int
    end: int


def read(text: str) -> Any:
    """What a text holds: `Text`, lists and dicts of them, and None for anything else."""
    top: list[Any] = []
    open_: list[list | dict] = [top]  # each inside the one before
    value = key = None
    for match in _TOKEN.finditer(text):
        token, inner = match[0], open_[-1]
        if match["sign"] is None and match["string"] is None and match["word"] is None:
            continue  # a comment
        if token == ":":
            key = value
        elif token == ",":
            key = None
        elif token in ("}", "]"):
            key = None
            del open_[max(len(open_) - 1, 1) :]
        else:
            value = {} if token == "{" else [] if token == "[" else _text(match)
            if isinstance(inner, list):
                inner.append(value)
            elif isinstance(key, Text):
                inner[key] = value
            key = None
            if isinstance(value, (dict, list)):
                open_.append(value)
    return next((value for value in top if value is not None), None)


def _text(match: re.Match) -> Text | None:
    try:
        found = Text(json.loads(match["string"] or ""))
    except ValueError:
        return None
    found.start, found.end = match.span()
    return found
