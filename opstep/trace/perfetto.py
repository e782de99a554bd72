"""Packets of Perfetto's native format: the format is the library's, its classes make the bytes."""

from __future__ import annotations

import mmap
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opstep.trace.template import NUMBER, TIME, Double, Number, double, flow

TAG = b"\n"  # repeated TracePacket packet = 1 (trace.proto)
SEQUENCE = 1  # all packets are of one sequence, and share its interned strings
# Values of `TracePacket.sequence_flags` and of `BuiltinClock`.
CLEARED, NEEDED = 1, 2
REALTIME, MONOTONIC, BOOTTIME = 1, 3, 6


def text(string: str) -> str:
    """As UTF-8 can hold it: paths may have bytes that are not text."""
    return string.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class Interned:
    """Strings that packets name by number; each stands in the file once, before its first use."""

    KINDS = {
        "event_categories": "name",
        "event_names": "name",
        "debug_annotation_names": "name",
        "debug_annotation_string_values": "str",
    }

    def __init__(self) -> None:
        self._iids: dict[str, dict[str, int]] = {kind: {} for kind in self.KINDS}
        self._new: list[tuple[str, int, str]] = []

    def iid(self, kind: str, string: str) -> int:
        iids = self._iids[kind]
        if string not in iids:
            iids[string] = len(iids) + 1
            self._new.append((kind, iids[string], text(string)))
        return iids[string]

    def packets(self) -> list[Any]:
        """Tells of the strings that are new since the last call."""
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

        if not self._new:
            return []
        packet = pb.TracePacket(trusted_packet_sequence_id=SEQUENCE, sequence_flags=NEEDED)
        for kind, iid, string in self._new:
            entry = getattr(packet.interned_data, kind).add(iid=iid)
            value = string.encode() if kind.endswith("string_values") else string
            setattr(entry, self.KINDS[kind], value)
        self._new = []
        return [packet]

    def slice(
        self,
        track: int,
        name: str,
        category: str,
        arguments: Mapping[str, Any],
        *,
        flows: Iterable[int] = (),
        ends: Iterable[int] = (),
        counter: tuple[int, int] | None = None,
        once: bool = False,
    ) -> tuple[Any, Any]:
        """A slice: the packets of its begin and its end, their times to be filled in.

        `arguments`: text, integers, `Number`, `Double`, or more such arguments by name. `flows`
        begin at the slice, `ends` are flows that come to it. `counter`: a counter's track, and its
        value from then on. `once`: the name is not used again.
        """
        begin, end = event(track, "TYPE_SLICE_BEGIN"), event(track, "TYPE_SLICE_END")
        about = begin.track_event
        self.describe(about, name, category, arguments, once)
        about.flow_ids.extend(flow(k) for k in flows)
        about.terminating_flow_ids.extend(flow(k) for k in ends)
        if counter is not None:
            about.extra_counter_track_uuids.append(counter[0])
            about.extra_counter_values.append(counter[1])
        return begin, end

    def describe(
        self,
        about: Any,
        name: str,
        category: str,
        arguments: Mapping[str, Any],
        once: bool = True,
    ) -> None:
        """Sets the name of a track event, and its arguments."""
        if once:
            about.name = text(name)
        else:
            about.name_iid = self.iid("event_names", name)
        about.category_iids.append(self.iid("event_categories", category))
        for key, value in arguments.items():
            annotation = about.debug_annotations.add()
            annotation.name_iid = self.iid("debug_annotation_names", key)
            self._value(annotation, value)

    def _value(self, annotation: Any, value: Any) -> None:
        match value:
            case Number(k):
                # Figures that are filled in are unsigned, all others signed: so a mark is one.
                annotation.uint_value = NUMBER + k
            case Double(k):
                annotation.double_value = double(k)
            case str():
                iid = self.iid("debug_annotation_string_values", value)
                annotation.string_value_iid = iid
            case int():
                annotation.int_value = value
            case float():
                annotation.double_value = value
            case _:
                for key, inner in value.items():
                    entry = annotation.dict_entries.add(name=key)
                    self._value(entry, inner)


def event(track: int, kind: Any) -> Any:
    """A packet with an event of a track, its time to be filled in."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    packet = pb.TracePacket(
        timestamp=TIME, trusted_packet_sequence_id=SEQUENCE, sequence_flags=NEEDED
    )
    packet.track_event.MergeFrom(pb.TrackEvent(type=kind, track_uuid=track))
    return packet


def encode(packets: Sequence[Any]) -> bytes:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    return pb.Trace(packet=packets).SerializeToString()


def bundle(data: bytes) -> bytes:
    """Packets as one that holds them compressed."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    return encode([pb.TracePacket(compressed_packets=zlib.compress(data, 1))])


def preamble() -> bytes:
    """The begin of a file: the clock that all times are of."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    now = {MONOTONIC: time.monotonic_ns(), REALTIME: time.time_ns()}
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux: counts on while the machine sleeps
        now[BOOTTIME] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    snapshot = pb.ClockSnapshot(primary_trace_clock=pb.BUILTIN_CLOCK_MONOTONIC)
    for clock, timestamp in now.items():
        snapshot.clocks.add(clock_id=clock, timestamp=timestamp)
    first = pb.TracePacket(clock_snapshot=snapshot, trusted_packet_sequence_id=SEQUENCE)
    defaults = pb.TracePacketDefaults(timestamp_clock_id=MONOTONIC)
    second = pb.TracePacket(
        trusted_packet_sequence_id=SEQUENCE,
        sequence_flags=CLEARED,
        trace_packet_defaults=defaults,
    )
    return encode([first, second])


def track(uuid: int, name: str, rank: int, parent: int | None = None, **more: Any) -> Any:
    """A track: `rank` is its place below its parent. `more`: fields of `TrackDescriptor`.

    The viewer keeps to ranks only below tracks that are not of a process or thread.
    """
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    kind = pb.TrackDescriptor
    described = kind(
        uuid=uuid,
        name=name,
        parent_uuid=parent,
        sibling_order_rank=rank,
        child_ordering=kind.EXPLICIT,
        sibling_merge_behavior=kind.SIBLING_MERGE_BEHAVIOR_NONE,
        **more,
    )
    return pb.TracePacket(track_descriptor=described, trusted_packet_sequence_id=SEQUENCE)


def counter(**fields: Any) -> Any:
    """The argument of `track` for a counter's track: ``counter=counter(unit=…)``."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    return pb.CounterDescriptor(**fields)


def parsed(packet: bytes) -> Any:
    """A packet, with the tag and size that it stands in a file with; None where it is none."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    try:
        (found,) = pb.Trace.FromString(packet).packet
    except (DecodeError, ValueError):
        return None
    return found


def is_ours(packet: bytes) -> bool:
    """Whether a packet is one as `TimelineSink` writes them."""
    found = parsed(packet)
    if found is None:
        return False
    names = {field.name for field, _ in found.ListFields()}
    return names == {"compressed_packets"} or found.trusted_packet_sequence_id == SEQUENCE


def is_trace(head: bytes) -> bool:
    """Whether a file that begins like this is one of Perfetto's."""
    found = parsed(head[: packet_end(head, 0)])
    return found is not None and bool(found.ListFields())


def packet_end(data: bytes | mmap.mmap, at: int) -> int:
    """The end of the packet that begins at a place of a file; 0 where none begins there."""
    size = shift = 0
    head = data[at : at + 11]
    if head[:1] != TAG:
        return 0
    for k, byte in enumerate(head[1:], 2):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return at + k + size
    return 0
