"""Where texts come from, for a client: files by their path, others by a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opstep.dap.client import Client
from opstep.dap.registry import DapError


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
        """What the text is called in places. Raises `DapError`."""
        return self._named(number)[0]

    def _named(self, number: int) -> tuple[str, str]:
        if not 0 < number <= len(self._texts):
            raise DapError(f"there is no source {number}")
        return self._texts[number - 1]
