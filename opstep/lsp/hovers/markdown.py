"""Pieces of Markdown that the texts about words are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opstep.lsp.file import File

LANGUAGE = "opstep"
_SPECIAL = re.compile(r"[\\`*<~]|(?<!\w)_|_(?!\w)|^[#>+-]|\](?=[(\[:])", re.MULTILINE)
_TICKS = re.compile(r"`+")
_CODE = re.compile(r"(?<!`)(`[^`]+`)(?!`)")


def block(text: str, language: str = LANGUAGE) -> str:
    """A block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def code(text: object) -> str:
    """Code within a line."""
    shown = str(text)
    longest = max(map(len, _TICKS.findall(shown)), default=0)
    if longest:
        around = "`" * (longest + 1)
        return f"{around} {shown} {around}"
    return f"`{shown}`"


def prose(text: str) -> str:
    """A docstring's text: paragraphs on lines of their own; what stands in `backticks` is code."""
    paragraphs = [" ".join(p.split()) for p in text.split("\n\n")]
    return "\n\n".join(
        "".join(part if k % 2 else escape(part) for k, part in enumerate(_CODE.split(paragraph)))
        for paragraph in paragraphs
        if paragraph
    )


def escape(text: str) -> str:
    """`text` so that nothing in it is formatting."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def paragraphs(parts: Iterable[str]) -> str:
    """Those that are not empty, set apart."""
    return "\n\n".join(part for part in parts if part)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table; "" where it has no rows. Cells are Markdown."""
    lines = [_row(row) for row in rows]
    if not lines:
        return ""
    return "\n".join([_row(head), _row(("---",) * len(head)), *lines])


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def link(file: File, offset: int, text: str = "") -> str:
    """A link to a line of a file: ``line 12``."""
    line = file.position(offset).line + 1
    uri = file.uri.replace("(", "%28").replace(")", "%29")  # a parenthesis would end it
    return f"[{escape(text) or f'line {line}'}]({uri}#L{line})"


def count(number: int, what: str, many: str = "") -> str:
    """``1 use``, ``2 uses``"""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {many or what + 's'}"
