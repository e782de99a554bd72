"""The current value from a debug session, at a stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opstep.lsp.hovers.markdown import code
from opstep.lsp.live import live_values

if TYPE_CHECKING:
    from opstep.lsp.file import File
    from opstep.lsp.project import Project


def text(project: Project, file: File, graph: str | None, name: str) -> str:
    """The value now; `graph` is None for params and states. "" where no session has it."""
    found = live_values(project, file).get((graph or "", name))
    if found is None:
        return ""
    return f"**Now** {code(found.text)}" + (f", {found.tooltip}" if found.tooltip else "")
