"""One timeline of several ranks, from those that each has written.

Tracks, sequences and flows of a file have numbers that its own packets share only; of rank k they
are moved to where no other rank has any. What ranks did together gets a flow of its own, whose
arrows go from rank to rank in the order in which they came, and the arguments `rank` and `meeting`.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from typing import Any

from opstep.runtime.ir.mesh import Group, Mesh
from opstep.trace import perfetto

_TRACKS = 40  # bits that numbers of tracks have in a file
_FLOWS = 20  # bits that number a launch's flows
_ROWS = 1000  # places of runs in a file
_ALONE = ("rank", "extent")  # ops that are of a group, and ask nobody
_OWN_NAMES = 1 << 20  # from here on numbers of names are ours

Clock = Callable[[int], int]


def join(target: Path, files: Mapping[int, Path], mesh: Mesh, clocks: Mapping[int, Clock]) -> int:
    """Writes one timeline of those of some ranks; gives its bytes. `clocks`: what a time of a rank
    is on the clock of rank 0; of those that are not named it is the same.

    Files that are cut off are taken as far as they go. The target, which may be one of the files,
    is replaced when all is written. Raises `OSError`.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as out:
            for rank, file in sorted(files.items()):
                packets_of = _Rank(rank, mesh, clocks.get(rank), keeps_clocks=rank == min(files))
                for data in packets_of.moved(file):
                    out.write(data)
            nbytes = out.tell()
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return nbytes


class _Rank:
    """The packets of one rank, on their way into a file with others."""

    def __init__(self, rank: int, mesh: Mesh, clock: Clock | None, keeps_clocks: bool):
        self.rank = rank
        self.mesh = mesh
        self.clock = clock
        self.keeps_clocks = keeps_clocks
        self._names: dict[int, str] = {}  # of arguments, by their number in this file
        self._strings: dict[int, str] = {}  # that are values of arguments
        self._iids: dict[str, int] = {}  # of the same, the other way
        self._groups = dict(_groups(mesh))
        self._met: dict[tuple[Any, ...], int] = {}  # how often, by who took part

    def moved(self, file: Path) -> Iterator[bytes]:
        """The packets of a file, bundle by bundle."""
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

        for packet in packets(file):
            if packet.HasField("compressed_packets"):
                inner = pb.Trace.FromString(zlib.decompress(packet.compressed_packets)).packet
                yield perfetto.bundle(perfetto.encode([*self._moved(inner)]))
            else:
                yield perfetto.encode([*self._moved([packet])])

    def _moved(self, found: Sequence[Any]) -> Iterator[Any]:
        for packet in found:
            if packet.HasField("clock_snapshot") and not self.keeps_clocks:
                continue
            packet.trusted_packet_sequence_id += self.rank
            if packet.HasField("timestamp") and self.clock is not None:
                packet.timestamp = self.clock(packet.timestamp)
            if packet.HasField("interned_data"):
                self._learn(packet.interned_data)
            if packet.HasField("track_descriptor"):
                self._move_track(packet.track_descriptor)
            if packet.HasField("track_event"):
                yield from self._move_event(packet)
            yield packet

    def _learn(self, interned: Any) -> None:
        self._names |= {e.iid: e.name for e in interned.debug_annotation_names}
        for entry in interned.debug_annotation_string_values:
            self._strings[entry.iid] = entry.str.decode("utf-8", "replace")
        self._iids |= {name: iid for iid, name in self._names.items()}

    def _move_track(self, track: Any) -> None:
        track.uuid = self._track(track.uuid)
        if track.HasField("parent_uuid") and track.parent_uuid:
            track.parent_uuid = self._track(track.parent_uuid)
        else:  # a run's own
            track.name = f"rank {self.rank}: {track.name}"
            track.sibling_order_rank += self.rank * _ROWS

    def _track(self, uuid: int) -> int:
        return uuid | self.rank << _TRACKS

    def _move_event(self, packet: Any) -> Iterator[Any]:
        event = packet.track_event
        event.track_uuid = self._track(event.track_uuid)
        for numbers in (event.flow_ids, event.terminating_flow_ids):
            numbers[:] = [k ^ self.rank << _FLOWS for k in numbers]
        counters = event.extra_counter_track_uuids
        counters[:] = [self._track(k) for k in counters]
        if event.type == event.TYPE_SLICE_BEGIN and (meeting := self._meeting(event)):
            for name in ("rank", "meeting"):
                if name not in self._iids:
                    yield self._interned(name)
            event.flow_ids.append(meeting)
            event.debug_annotations.add(name_iid=self._iids["rank"], int_value=self.rank)
            annotation = event.debug_annotations.add(name_iid=self._iids["meeting"])
            annotation.string_value = f"{meeting:016x}"

    def _interned(self, name: str) -> Any:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

        self._iids[name] = iid = _OWN_NAMES + len(self._iids)
        packet = pb.TracePacket(
            trusted_packet_sequence_id=perfetto.SEQUENCE + self.rank,
            sequence_flags=perfetto.NEEDED,
        )
        packet.interned_data.debug_annotation_names.add(iid=iid, name=name)
        return packet

    def _meeting(self, event: Any) -> int:
        """The number of what ranks do together, the same on all that take part; 0 for an op of this
        rank alone.
        """
        about: dict[str, str] = {}
        for argument in event.debug_annotations:
            name = self._names.get(argument.name_iid, "")
            if name in ("name", "attrs"):
                about[name] = self._strings.get(argument.string_value_iid, "")
        attrs = json.loads(about.get("attrs") or "{}")
        group = self._groups.get(attrs.get("over", ""))
        if group is None or group.size == 1 or about.get("name") in _ALONE:
            return 0
        members = group.members(self.rank)
        if "to" in attrs:
            members = (self.rank, members[attrs["to"]])
        elif "source" in attrs:
            members = (members[attrs["source"]], self.rank)
        key = (group.axes, members, "to" in attrs or "source" in attrs)
        number = self._met[key] = self._met.get(key, 0) + 1
        digest = blake2b(repr((key, number)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") | 1 << 63


def _groups(mesh: Mesh) -> Iterator[tuple[str, Group]]:
    """All groups of a mesh, by what an op's arguments call them."""
    for count in range(1, len(mesh.names) + 1):
        for axes in combinations(mesh.names, count):
            group = Group(mesh, axes)
            yield str(group), group


def packets(file: Path) -> Iterator[Any]:
    """Packets of a timeline, as far as it is whole."""
    if not file.stat().st_size:
        return
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while at < (end := perfetto.packet_end(data, at)) <= len(data):
            if (packet := perfetto.parsed(data[at:end])) is None:
                return
            yield packet
            at = end
