"""Readable names: values are called after Python's variables, graphs after classes."""

from __future__ import annotations

import re

from opstep.runtime.ir.lexer import RESERVED


def identifier(text: str, default: str = "v") -> str:
    """A text as the name of a value: ``h.0.attn`` becomes ``h_0_attn``."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")
    if not name or not (name[0].isalpha() or name[0] == "_"):
        name = f"{default}_{name}" if name else default
    return f"{name}_" if name in RESERVED else name
