"""What can stand at a place of an expression."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from opstep.runtime.expressions.functions import FUNCTIONS
from opstep.runtime.expressions.parser import OPERATORS, WORDS
from opstep.runtime.ir.types import DTYPES

_BEFORE = re.compile(r"[A-Za-z_][\w.]*\Z", re.ASCII)
_WITHIN = re.compile(r"[\w.]*", re.ASCII)
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


def complete(text: str, column: int, names: Iterable[str]) -> list[Completion]:
    """What may stand at an offset of a text: tensors first, then functions and words. Inside a
    text in quotes nothing is known.
    """
    column = max(0, min(column, len(text)))
    before = text[:column]
    if before.count('"') % 2 or before.count("'") % 2:
        return []
    match = _BEFORE.search(before)
    begun = match[0] if match else ""
    start = column - len(begun)
    if not begun and (before[-1:].isdigit() or before[-1:] == "."):
        return []
    rest = _WITHIN.match(text, column)
    end = rest.end() if rest else column
    found = [(name, "tensor", "") for name in names]
    found += [(f.name, "function", f"{f.signature}: {f.doc}") for _, f in sorted(FUNCTIONS.items())]
    found += [(word, "word", "") for word in (*WORDS, *OPERATORS) if word not in FUNCTIONS]
    if _CAST.search(before[:start]):
        found = [(name, "dtype", "") for name in DTYPES]
    fitting = [f for f in found if f[0].startswith(begun)]
    if not fitting:
        fitting = [f for f in found if f[0].lower().startswith(begun.lower())]
    return [Completion(*f, start, end) for f in fitting[:MOST]]
