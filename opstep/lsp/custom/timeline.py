"""``opstep/timeline``: the Perfetto UI on a trace, for a view that has it in a frame."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.lsp.project import PerProject
from opstep.lsp.registry import feature
from opstep.runtime.ir.errors import InputError
from opstep.trace.viewer.files import readable_parts
from opstep.trace.viewer.server import Server

if TYPE_CHECKING:
    from opstep.lsp.project import Project

MOST_OPEN = 16  # traces that are served at once; the oldest one goes


class Viewers:
    """Servers by the number that a client closes them with."""

    def __init__(self):
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Server] = OrderedDict()
        self._next = 1

    def open(self, server: Server) -> int:
        # A daemon: the end of the language server ends it.
        threading.Thread(target=server.serve_forever, name="opstep-timeline", daemon=True).start()
        with self._lock:
            number = self._next
            self._next += 1
            self._open[number] = server
            oldest = self._open.popitem(last=False)[1] if len(self._open) > MOST_OPEN else None
        _end(oldest)
        return number

    def close(self, number: int) -> bool:
        with self._lock:
            server = self._open.pop(number, None)
        _end(server)
        return server is not None


def _end(server: Server | None) -> None:
    if server is not None:
        server.shutdown()
        server.server_close()


_viewers = PerProject(Viewers)


@feature("opstep/timeline/open", thread=True)
def open_timeline(project: Project, params: dict[str, Any]) -> dict[str, Any]:
    """Serves a trace to a page: ``{path, frames}`` with the origins of the pages around it.

    ``address`` is on this machine's loopback, with a secret in its path; ``number`` is what
    `opstep/timeline/close` takes. ``cut``: bytes at the end of the file that are not a packet;
    ``damaged``: from which byte to which others are left out.
    """
    path, frames = params.get("path"), params.get("frames", [])
    if not isinstance(path, str) or not path:
        raise InputError("path: expected the path of a trace")
    if not isinstance(frames, list):
        raise InputError("frames: expected a list of origins")
    parts = readable_parts(Path(path))
    server = Server(path, frames=frames)
    number = _viewers.of(project).open(server)
    damaged = [list(part) for part in parts.damaged]
    return {"number": number, "address": server.address, "cut": parts.cut, "damaged": damaged}


@feature("opstep/timeline/close", thread=True)
def close_timeline(project: Project, params: dict[str, Any]) -> dict[str, Any]:
    """Ends what `opstep/timeline/open` began: ``{number}``."""
    number = params.get("number")
    return {"closed": isinstance(number, int) and _viewers.of(project).close(number)}
