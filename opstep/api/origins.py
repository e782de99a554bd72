"""Paths of the files that an importer took statements from, as programs have them.

A file of an installed library is written from where libraries are installed, a file of the user's
from where the program is. `locate` finds either again, on another machine, too.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache

_KINDS = ("purelib", "platlib", "stdlib")
_LIBRARIES = sorted({f"{sysconfig.get_path(k)}/" for k in _KINDS}, key=len)[::-1]


@lru_cache(4096)
def locate(file: str, base: str) -> str | None:
    """The file that an origin names: from the program's folder `base`, then from where Python finds
    modules and where libraries are installed. None where it is nowhere.
    """
    if os.path.isabs(file):
        return file if os.path.isfile(file) else None
    for folder in (base, *(p or os.curdir for p in sys.path), *_LIBRARIES):
        path = os.path.normpath(os.path.join(folder, file))
        if os.path.isfile(path):
            return os.path.abspath(path)
    return None
