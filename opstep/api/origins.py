"""Paths of the files that an importer took statements from, as programs have them.

A file of an installed library is written from where libraries are installed, a file of the user's
from where the program is. `locate` finds either again, on another machine, too.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from opstep.runtime.ir.graph import Graph, Module, Provenance, SourceLine

_KINDS = ("purelib", "platlib", "stdlib")
_LIBRARIES = sorted({f"{sysconfig.get_path(k)}/" for k in _KINDS}, key=len)[::-1]
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(?=.)|.*/lib/python3\.\d+/(?=.)")


@lru_cache(4096)
def portable(file: str) -> str:
    """The path of an installed library's file from where it is installed: the same on every
    machine. Other paths stay.
    """
    for folder in _LIBRARIES:
        if file.startswith(folder):
            return file[len(folder) :]
    found = _INSTALLED.match(file)  # of another Python, which exported the model
    return file[found.end() :] if found else file


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


def relocated(module: Module, old: Path, new: Path) -> Module:
    """A module whose origins are relative to the folder `new`; those in `module` to `old`. Paths of
    libraries, and of files that are not here, stay.
    """

    @lru_cache(None)
    def moved(file: str) -> str:
        path = os.path.normpath(os.path.join(old, file))
        return os.path.relpath(path, new) if os.path.isfile(path) else file

    def at(found: Provenance) -> Provenance:
        frames = tuple(SourceLine(moved(f.file), f.line) for f in found.frames)
        return replace(found, frames=frames)

    def graph(g: Graph) -> Graph:
        body: Any = tuple(replace(s, at=at(s.at)) if s.at else s for s in g.body)
        return replace(g, body=body)

    items = tuple(graph(i) if isinstance(i, Graph) else i for i in module.items)
    return Module(items, module.closing, module.source)
