"""Words of commands that every session has: counts, numbers of things, conditions."""

from __future__ import annotations

import re

from opstep.cli.debug.registry import Refused
from opstep.runtime.ir.diagnostics import visible

_IF = re.compile(r"(?:^|\s)if(?:\s+|$|(?=\())")


def split_if(text: str) -> tuple[str, str | None]:
    """``12 if nan(x)`` as its two halves. Raises `Refused` where nothing follows ``if``."""
    match = _IF.search(text)
    if match is None:
        return text.strip(), None
    condition = text[match.end() :].strip()
    if not condition:
        raise Refused("an expression is missing after if")
    return text[: match.start()].strip(), condition


def numbers(text: str) -> list[int]:
    """``1 3-5`` as numbers. Raises `Refused`."""
    found: list[int] = []
    for word in text.replace(",", " ").split():
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word)
        if not match:
            raise Refused(f"{visible(word[:60])} is not a number", "write 2, or 2-4")
        low, high = int(match[1]), int(match[2] or match[1])
        if high - low > 10_000:
            raise Refused(f"{word} are too many")
        found += range(low, high + 1)
    return found


def count(text: str, default: int = 1) -> int:
    """How many times. Raises `Refused`."""
    text = text.strip()
    if not text:
        return default
    if not text.isdecimal() or len(text) > 9:
        raise Refused(f"{visible(text[:60])} is not a count", "write a number")
    return int(text)
