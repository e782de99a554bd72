"""The programs that lie in the workspace folders, found when first asked for and looked at again
when they change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.lsp.file import File
    from opstep.lsp.project import Project

_MOST_FILES = 2_000
_MOST_BYTES = 16 << 20  # of one file: what is larger was generated, and is not read unasked
_PASSED_OVER = frozenset(("node_modules", "__pycache__", "venv", "site-packages", "build", "dist"))


def program_paths(project: Project) -> Iterator[Path]:
    """The .opg files in the folders that are open; hidden folders are passed over."""
    count = 0
    for folder in project.folders:
        for parent, folders, files in os.walk(folder):
            folders[:] = sorted(
                f for f in folders if not f.startswith(".") and f not in _PASSED_OVER
            )
            for name in sorted(files):
                if name.endswith(".opg"):
                    yield Path(parent) / name
                    count += 1
                    if count >= _MOST_FILES:
                        return


def folder_files(project: Project) -> Iterator[File]:
    """The files that are open, then those of the folders that can be read."""
    open_files = project.files()
    yield from open_files
    open_paths = {file.path for file in open_files}
    for path in program_paths(project):
        if str(path) in open_paths:
            continue
        try:
            if path.stat().st_size <= _MOST_BYTES:
                yield project.file_at(path)
        except (InputError, OSError):
            continue  # deleted meanwhile, or no text: nobody has asked for it by name
