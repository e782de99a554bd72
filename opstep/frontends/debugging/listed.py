"""Lines whose ops are listed."""

from __future__ import annotations

import os
import types
from dataclasses import dataclass, field


@dataclass
class Listing:
    """Of a line, the ops of its last run that had some. `count`: how many there were; `is_whole`:
    it began since they are listed; `is_over`: another run has begun, without an op so far.
    """

    ops: list[str] = field(default_factory=list)
    count: int = 0
    is_whole: bool = False
    is_over: bool = False


listed: dict[tuple[str, int], Listing] = {}  # by file and line


def place_of(frame: types.FrameType) -> tuple[str, int]:
    return os.path.abspath(frame.f_code.co_filename), frame.f_lineno
