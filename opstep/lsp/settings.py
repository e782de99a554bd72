"""The settings that a client sends under ``opstep``, by their dotted names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opstep.lsp.project import Project


def flag(project: Project, name: str, default: bool) -> bool:
    """Whether ``opstep.NAME`` is on. Clients send nested objects, or the dotted name as the key."""
    found: Any = project.settings
    if isinstance(found.get(name), bool):
        return found[name]
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, bool) else default
