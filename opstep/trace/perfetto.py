"""Packets of Perfetto's native format, many at once.

The format is the library's: its protobuf classes make the bytes. They make them once, with marks in
the place of what differs each time (times, numbers, flows), and NumPy puts the figures of a whole
record there: a `Template`. Marks have the size of what replaces them, so that no length changes.
"""

from __future__ import annotations

import re
import struct
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

SEQUENCE = 1  # all packets are of one sequence, and share its interned strings
# Values of `TracePacket.sequence_flags` and of `BuiltinClock`.
CLEARED, NEEDED = 1, 2
REALTIME, MONOTONIC, BOOTTIME = 1, 3, 6

_TIME_BYTES, _NUMBER_BYTES = 9, 5
TIME = 1 << 7 * (_TIME_BYTES - 1) + 6  # a varint of 9 bytes; times have 63 bits
_NUMBER = 1 << 7 * (_NUMBER_BYTES - 1) + 6  # of 5 bytes: numbers have 35 bits
_FLOW, _DOUBLE = b"\x0b\xf7\xc3\xde", b"\xc3\x5e\xb7\x41"


class Number(NamedTuple):
    """In an argument's place: the k-th of the `numbers` that a template is filled with."""

    k: int


class Double(NamedTuple):
    """In an argument's place: the k-th of its `doubles`."""

    k: int


def flow(k: int) -> int:
    """In the place of a flow's id: the k-th of the template's `flow` number."""
    return int.from_bytes(struct.pack("<I", k) + _FLOW, "little")


def text(string: str) -> str:
    """As UTF-8 can hold it: paths may have bytes that are no text."""
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
        known = self._iids[kind]
        if string not in known:
            known[string] = len(known) + 1
            self._new.append((kind, known[string], text(string)))
        return known[string]

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
        """What a track event is called, and its arguments."""
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
                annotation.uint_value = _NUMBER + k
            case Double(k):
                annotation.double_value = struct.unpack("<d", struct.pack("<I", k) + _DOUBLE)[0]
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


class Template:
    """Packets with marks; see the module's words."""

    def __init__(self, packets: Sequence[Any]):
        data = encode(packets)
        self._bytes = np.frombuffer(data, np.uint8)
        found: dict[str, list[int]] = {"time": [], "flow": [], "double": []}
        numbers: dict[int, list[int]] = {}
        for match in _marks().finditer(data):
            kind = str(match.lastgroup)
            if kind == "number":
                at = match.start(kind)
                numbers.setdefault(data[at] & 0x7F, []).append(at)
            else:
                found[kind].append(match.start(kind))
        self._times = _spread(found["time"], _TIME_BYTES)
        self._numbers = {k: _spread(at, _NUMBER_BYTES) for k, at in numbers.items()}
        self._flows = _spread([at + 4 for at in found["flow"]], 4)  # the upper half of the id
        self._doubles = _spread(found["double"], 8)
        self._which = [struct.unpack_from("<I", data, at)[0] for at in found["double"]]

    def fill(
        self,
        times: np.ndarray,
        *,
        numbers: Sequence[int] = (),
        flow: int = 0,
        doubles: np.ndarray | Sequence[float] = (),
    ) -> bytes:
        """The packets with these times (i64, ns, one a packet). `flow` tells the flows of this
        use from those of all others; below 2^32.
        """
        out = self._bytes.copy()
        out[self._times] = _varints(times, _TIME_BYTES)
        for k, at in self._numbers.items():
            out[at] = _varints(np.array([numbers[k]]), _NUMBER_BYTES)
        if len(self._flows):
            out[self._flows] = np.frombuffer(struct.pack("<I", flow), np.uint8)
        if len(self._doubles):
            figures = np.asarray(doubles, "<f8")[self._which]
            out[self._doubles] = figures.view(np.uint8).reshape(-1, 8)
        return out.tobytes()


@cache
def _marks() -> re.Pattern[bytes]:
    """Where the figures go. Each mark is found with its field's tag before it."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    def tag(message: Any, field: str, wire: int) -> bytes:
        # https://protobuf.dev/programming-guides/encoding/#structure
        return re.escape(_varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | wire))

    moment = tag(pb.TracePacket, "timestamp", 0)
    number = tag(pb.DebugAnnotation, "uint_value", 0)
    flows = [tag(pb.TrackEvent, f, 1) for f in ("flow_ids", "terminating_flow_ids")]
    double = tag(pb.DebugAnnotation, "double_value", 1)
    return re.compile(
        moment + rb"(?P<time>\x80{8}\x40)|"
        + number + rb"(?P<number>[\x80-\x8f]\x80{3}\x40)|"
        + rb"(?:" + b"|".join(flows) + rb")(?P<flow>.{4}" + re.escape(_FLOW) + rb")|"
        + double + rb"(?P<double>.{4}" + re.escape(_DOUBLE) + rb")",
        re.DOTALL,
    )  # fmt: skip


def _varint(number: int) -> bytes:
    out = []
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _spread(at: list[int], size: int) -> np.ndarray:
    """i64[n, size]: where each byte goes."""
    return np.array(at, np.int64)[:, None] + np.arange(size)


def _varints(numbers: np.ndarray, size: int) -> np.ndarray:
    """u8[n, size]: varints of a fixed size; those of small numbers end in zeros."""
    out = (numbers[:, None] >> (7 * np.arange(size)) & 0x7F).astype(np.uint8)
    out[:, :-1] |= 0x80
    return out


def encode(packets: Sequence[Any]) -> bytes:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    return pb.Trace(packet=packets).SerializeToString()


def bundle(data: bytes) -> bytes:
    """Packets as one that holds them compressed."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    return encode([pb.TracePacket(compressed_packets=zlib.compress(data, 1))])


def preamble() -> bytes:
    """What a file begins with: the clock that all times are of."""
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
    """What `track` is given for a counter's track: ``counter=counter(unit=…)``."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    return pb.CounterDescriptor(**fields)


def is_trace(head: bytes) -> bool:
    """Whether a file that begins like this is one of Perfetto's."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    if len(head) < 2 or head[:1] != _varint(pb.Trace.DESCRIPTOR.fields[0].number << 3 | 2):
        return False
    size, at = head[1] & 0x7F, 2
    while head[at - 1] & 0x80 and at < min(len(head), 5):
        size |= (head[at] & 0x7F) << 7 * (at - 1)
        at += 1
    try:
        return bool(pb.TracePacket.FromString(head[at : at + size]).ListFields())
    except DecodeError:
        return False
