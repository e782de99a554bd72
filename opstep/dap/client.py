"""A client's own description, and how places, names and arguments (as in launch.json) are written
for it; texts are files by their path, others have numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from opstep.api.settings import FIELDS
from opstep.dap.checking import named
from opstep.dap.registry import DapError
from opstep.runtime.ir.wording import Argument


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


class Sources:
    """Of one session. Graphs that no file holds (of the library, or written by the gradient) get a
    ``sourceReference``, under which a client asks for their text.
    """

    def __init__(self) -> None:
        self._texts: list[tuple[str, str]] = []  # name, text
        self._numbers: dict[tuple[str, str], int] = {}

    def describe(self, path: str, text: str, client: Client, folder: Path) -> dict[str, Any]:
        """A ``Source``. Relative paths are looked for below `folder`; what is not a file gets a
        number, if there is a text.
        """
        full = Path(path) if Path(path).is_absolute() else folder / path
        if full.is_file():
            return client.source(str(full))
        if not text:
            return {"name": path}
        return {"name": path, "sourceReference": self.number(path, text), "origin": "generated"}

    def number(self, name: str, text: str) -> int:
        """The ``sourceReference`` of a text."""
        key = (name, text)
        if key not in self._numbers:
            self._texts.append(key)
            self._numbers[key] = len(self._texts)
        return self._numbers[key]

    def text(self, number: int) -> str:
        """Raises `DapError` for a number that was not given."""
        return self._named(number)[1]

    def name(self, number: int) -> str:
        """The name of the text in places. Raises `DapError`."""
        return self._named(number)[0]

    def _named(self, number: int) -> tuple[str, str]:
        if not 0 < number <= len(self._texts):
            raise DapError(f"there is no source {number}")
        return self._texts[number - 1]
