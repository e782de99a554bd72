"""Whose files are whose, in a script's process."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_DEBUGGER = [getattr(sys.modules.get(name), "__file__", None) for name in ("debugpy", "pydevd")]
_LIBRARIES = tuple(
    os.path.join(folder, "")
    for folder in (
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
        *(os.path.dirname(file) for file in _DEBUGGER if file),
    )
)


def is_user(filename: str, folders: Sequence[str]) -> bool:
    """Whether it is the person's: below one of these folders, and neither a library's nor ours, nor
    what has no file, as exec'd code.
    """
    if filename.startswith(("<", OURS)) or "site-packages" in filename:
        return False
    if filename.startswith(_LIBRARIES):
        return False
    path = os.path.abspath(filename)
    return any(path.startswith(os.path.join(folder, "")) for folder in folders)
