"""What the server knows: open files, files of folders, settings, live values, and what features
keep for each client.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from pygls import uris

from opstep.lsp.file import File
from opstep.lsp.item import Item
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.reading import read_source

_MOST_KEPT = 256  # files from disk that are kept parsed

Send = Callable[[str, Any], None]


class Project:
    """Everything that features look at.

    `settings`: what the client said under ``opstep``. `folders`: paths of its workspace folders.
    `live`: values that a debug session has told, by path. `capabilities`: the client's, as the
    protocol has them; None before it has said so. `send` and `ask` reach the client: a
    notification, and a request whose answer nobody waits for.
    """

    def __init__(self, send: Send | None = None, ask: Send | None = None):
        self.settings: dict[str, Any] = {}
        self.folders: list[str] = []
        self.live: dict[str, Any] = {}
        self.capabilities: Any = None
        self._send = send or (lambda method, params: None)
        self._ask = ask or (lambda method, params: None)
        self._open: dict[str, File] = {}
        self._read: dict[str, tuple[tuple[int, int], File]] = {}  # by path; time and size with it

    # --- files ------------------------------------------------------------------------------------

    def file(self, uri: str) -> File:
        """A file that is open in the editor, or as it is on disk. Raises `InputError`."""
        if uri in self._open:
            return self._open[uri]
        path = uris.to_fs_path(uri)
        if not path:
            raise InputError(f"{uri} is not open, and is not a file that could be read")
        return self.file_at(path)

    def opened(self, uri: str) -> File | None:
        """The file where it is open in the editor."""
        return self._open.get(uri)

    def file_at(self, path: str | Path) -> File:
        """`file` by its path."""
        path = os.path.abspath(path)
        uri = uri_of(path)
        for candidate in (uri, *(u for u, f in self._open.items() if f.path == path)):
            if candidate in self._open:
                return self._open[candidate]
        try:
            found = os.stat(path)
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                raise InputError(f"{path} is not a file: a pipe or a device would be waited for")
            stamp = found.st_mtime_ns, found.st_size
        except (OSError, ValueError):
            self._read.pop(path, None)
            stamp = (0, 0)  # read_source says why
        cached = self._read.get(path)
        if cached is not None and cached[0] == stamp:
            return cached[1]
        file = File(self, uri, path, read_source(path))
        self._read[path] = stamp, file
        while len(self._read) > _MOST_KEPT:
            del self._read[next(iter(self._read))]
        return file

    def files(self) -> list[File]:
        """Those that are open in the editor."""
        return list(self._open.values())

    def open(self, uri: str, text: str, version: int) -> File:
        """An editor has opened a file: from now on its text is what the editor says."""
        path = uris.to_fs_path(uri) or uri
        file = self._open[uri] = File(self, uri, path, text, version)
        return file

    def close(self, uri: str) -> None:
        """An editor has closed a file."""
        self._open.pop(uri, None)

    def forget(self, uri: str) -> None:
        """A file has changed on disk."""
        self._read.pop(uris.to_fs_path(uri) or "", None)

    @cached_property
    def library(self) -> list[File]:
        """The files of the standard library."""
        from opstep.kernels import stdlib

        found = sorted(Path(stdlib.__file__).parent.glob("*.opg"))
        return [File(self, uri_of(str(p)), str(p), read_source(p)) for p in found]

    @property
    def library_graphs(self) -> Mapping[str, Item]:
        """The graphs of the standard library by name."""
        return self._library_graphs

    @cached_property
    def _library_graphs(self) -> dict[str, Item]:
        return {name: item for file in self.library for name, item in file.graphs.items()}

    # --- the client -------------------------------------------------------------------------------

    recheck: Callable[[], None] = staticmethod(lambda: None)  # checks open texts; a server sets it

    def notify(self, method: str, params: Any) -> None:
        """Sends the client a notification."""
        self._send(method, params)

    def log(self, text: str) -> None:
        """Writes a line to the client's log of the server."""
        from lsprotocol import types

        message = types.LogMessageParams(types.MessageType.Log, text)
        self._send(types.WINDOW_LOG_MESSAGE, message)

    def refresh_inlay_hints(self) -> None:
        """Makes the client ask for inlay hints anew, where it can."""
        self._refresh("inlay_hint", "workspace/inlayHint/refresh")

    def refresh_code_lenses(self) -> None:
        self._refresh("code_lens", "workspace/codeLens/refresh")

    def _refresh(self, capability: str, method: str) -> None:
        workspace = getattr(self.capabilities, "workspace", None)
        if getattr(getattr(workspace, capability, None), "refresh_support", None):
            self._ask(method, None)


def uri_of(path: str) -> str:
    """The URI of a path."""
    return uris.from_fs_path(os.path.abspath(path)) or ""


T = TypeVar("T")


class PerProject(Generic[T]):
    """``of(project)`` gives the same object for a project each time, from any thread."""

    def __init__(self, make: Callable[[], T]):
        self._make = make
        self._values: WeakKeyDictionary[object, T] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, project: object) -> T:
        with self._lock:
            found = self._values.get(project)
            if found is None:
                found = self._values[project] = self._make()
            return found
