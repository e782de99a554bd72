"""Kernels that are written by code: their texts stay known, for those who look at what runs."""

from __future__ import annotations

from types import CodeType
from typing import Any

_texts: dict[str, str] = {}  # by the name of their file


def from_text(text: str, what: str, name: str, scope: dict[str, Any]) -> Any:
    """The function `name` of a text that was written by code; `scope` becomes its globals."""
    file = f"<{what}>"
    while _texts.setdefault(file, text) != text:
        file += "'"
    exec(compile(text, file, "exec"), scope)
    return scope[name]


def text_of(code: CodeType) -> str | None:
    """The text that a function was made from by `from_text`."""
    return _texts.get(code.co_filename)
