"""Arguments as an editor gives them, in launch.json: ``"symbols": {"N": 8}``."""

from __future__ import annotations

import json

from opstep.api.settings import FIELDS
from opstep.runtime.ir.wording import Argument

GIVEN = {"graph", "inputs", "symbols", "params", *(f.name for f in FIELDS)}


def in_launch(argument: Argument) -> str | None:
    """A key and its value, for what `launch` takes."""
    name, value = argument
    if name not in GIVEN and argument != ("fallback", "torch"):
        return None
    if value is None:
        return f'"{name}"'
    if name == "params":
        value = "FILE.safetensors"
    if isinstance(value, list):  # words: x=zeros
        pairs = [word.partition("=")[::2] for word in value if "=" in word]
        value = dict(pairs) if pairs else value[0]
    return f'"{name}": {json.dumps(value, ensure_ascii=False)}'
