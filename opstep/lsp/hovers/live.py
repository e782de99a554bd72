"""What a debug session says of a value, while it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opstep.lsp.file import File
    from opstep.lsp.project import Project


def text(project: Project, file: File, graph: str | None, name: str) -> str:
    return ""
