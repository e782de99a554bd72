"""What a client said of itself, and how places and names are written for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from opstep.dap.checking import named


@dataclass(frozen=True)
class Client:
    """The arguments of ``initialize``, which hold for the session."""

    client_id: str | None = named("clientID")
    client_name: str | None = None
    adapter_id: str | None = named("adapterID")
    locale: str | None = None
    lines_start_at1: bool = named("linesStartAt1", True)
    columns_start_at1: bool = named("columnsStartAt1", True)
    path_format: Literal["path", "uri"] = "path"
    supports_variable_type: bool = False
    supports_variable_paging: bool = False
    supports_run_in_terminal_request: bool = False
    supports_memory_references: bool = False
    supports_progress_reporting: bool = False
    supports_invalidated_event: bool = False
    supports_memory_event: bool = False
    supports_start_debugging_request: bool = False
    supports_ansi_styling: bool = named("supportsANSIStyling", False)

    @property
    def selects_frames(self) -> bool:
        """VS Code selects all that a frame spans, and what is typed next would replace it."""
        return self.client_id == "vscode"

    @property
    def has_menus(self) -> bool:
        """Whether an extension of ours adds to the menus of variables."""
        return self.client_id == "vscode"

    @property
    def shows_places(self) -> bool:
        """Whether errors are told by an extension, which knows places, and in no window."""
        return self.client_id == "vscode"

    def line(self, ours: int) -> int:
        """Our lines start at 1."""
        return ours if self.lines_start_at1 else ours - 1

    def column(self, ours: int) -> int:
        """Our columns start at 1."""
        return ours if self.columns_start_at1 else ours - 1

    def our_line(self, theirs: int) -> int:
        return theirs if self.lines_start_at1 else theirs + 1

    def our_column(self, theirs: int) -> int:
        return theirs if self.columns_start_at1 else theirs + 1

    def source(self, path: str) -> dict[str, Any]:
        """A ``Source`` for a file."""
        full = Path(path).absolute()
        return {"name": full.name, "path": full.as_uri() if self.by_uri else str(full)}

    def our_path(self, theirs: str) -> str:
        """The path that a ``Source`` of the client names."""
        if self.by_uri and theirs.startswith("file:"):
            return unquote(urlsplit(theirs).path)
        return theirs

    @property
    def by_uri(self) -> bool:
        return self.path_format == "uri"


@dataclass(frozen=True)
class Source:
    """A ``Source`` that a client sends."""

    name: str | None = None
    path: str | None = None
    source_reference: int | None = None
