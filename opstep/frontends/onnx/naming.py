"""Names of values and graphs: those of the file, where they are names here."""

from __future__ import annotations

import re
from functools import cache

from opstep.runtime.ir.lexer import identifier

_ENDING = re.compile(r"_output_0$")
_MANY = re.compile(r"__+")


@cache
def readable(name: str) -> str:
    """``/layers.0/conv/Conv_output_0`` becomes ``layers_0_conv_Conv``."""
    if name.startswith("/"):
        name = _ENDING.sub("", name)
    name = "".join(c if c.isascii() else "_" for c in name)
    return identifier(_MANY.sub("_", identifier(name.strip("/"))).rstrip("_") or "v")
