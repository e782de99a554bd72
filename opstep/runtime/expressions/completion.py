"""What can stand at a place of an expression."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from opstep.runtime.expressions.functions import FUNCTIONS
from opstep.runtime.expressions.parser import OPERATORS, WORDS
from opstep.runtime.ir.lexer import quote_name
from opstep.runtime.ir.types import DTYPES

_BEFORE = re.compile(r"[A-Za-z_][\w.]*\Z", re.ASCII)
_WITHIN = re.compile(r"[\w.]*", re.ASCII)
_WITHIN_QUOTES = re.compile(r"[\w.]*`?")
_CAST = re.compile(r"\bcast\s*\([^()]*,\s*\Z")
MOST = 1_000


class Completion(NamedTuple):
    """`text` stands for the characters from `start` to `end` of the expression; `kind`: tensor,
    function, word or dtype.
    """

    text: str
    kind: str
    detail: str
    start: int
    end: int


def begun_name(before: str) -> str:
    """The name that a text ends in, whole or half typed; "" where it ends in none."""
    if before.count("`") % 2:
        return before[before.rindex("`") :]
    match = _BEFORE.search(before)
    return match[0] if match else ""


def complete(text: str, column: int, names: Iterable[str]) -> list[Completion]:
    """What may stand at an offset of a text: tensors first, then functions and words. Inside a
    text in quotes nothing is known.
    """
    column = max(0, min(column, len(text)))
    before = text[:column]
    if before.count('"') % 2 or before.count("'") % 2:
        return []
    begun = begun_name(before)
    start = column - len(begun)
    if not begun and (before[-1:].isdigit() or before[-1:] == "."):
        return []
    rest = (_WITHIN_QUOTES if begun[:1] == "`" else _WITHIN).match(text, column)
    end = rest.end() if rest else column
    found = [(quote_name(name), "tensor", "") for name in names]
    found += [(f.name, "function", f"{f.signature}: {f.doc}") for _, f in sorted(FUNCTIONS.items())]
    found += [(word, "word", "") for word in (*WORDS, *OPERATORS) if word not in FUNCTIONS]
    if _CAST.search(before[:start]):
        found = [(name, "dtype", "") for name in DTYPES]
    fitting = [f for f in found if f[0].startswith((begun, f"`{begun}"))]
    if not fitting:
        begun = begun.lower()
        fitting = [f for f in found if f[0].lower().startswith((begun, f"`{begun}"))]
    return [Completion(*f, start, end) for f in fitting[:MOST]]
